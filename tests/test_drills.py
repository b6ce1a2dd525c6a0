"""The interview drills: every question of the bank, the grader, the quiz, the page."""

import itertools
import json
import math
import re
from pathlib import Path

import pytest

from course import drills, facts
from course.costs import nccl
from course.drills import expressions, markdown, reading, templates
from course.drills.questions import LETTERS
from course.drills.session import Session
from tests import memory_by_hand, moe_by_hand, pipeline_by_hand, rings_by_hand

# The rows that each chapter has to cover: topics with their first and last row.
ROWS = {
    "02": [f"C{n:02}" for n in range(1, 15)],
    "03": [f"C{n:02}" for n in range(15, 28)],
    "04": [f"C{n:02}" for n in range(28, 37)],
    "07": [f"M{n:02}" for n in range(1, 15)],
    "08": [f"M{n:02}" for n in range(15, 30)],
    "10": [f"P{n:02}" for n in range(1, 14)],
    "11": [f"E{n:02}" for n in range(1, 14)],
}
_HANDS = (rings_by_hand, memory_by_hand, moe_by_hand, pipeline_by_hand)
BY_HAND = {row: answer for hand in _HANDS for row, answer in hand.ANSWERS.items()}
NOTEBOOKS = Path(__file__).parents[1] / "notebooks"

EVERY = list(reading.every().values())
NUMERIC = [q for q in EVERY if q.kind == "numeric"]
CHOICE = [q for q in EVERY if q.kind in ("single", "multi")]
OPEN = [q for q in EVERY if q.kind == "open"]


def ids(questions):
    return [question.id for question in questions]


def each(questions):
    return pytest.mark.parametrize("question", questions, ids=ids(questions))


# --- The bank ---------------------------------------------------------------------------


@pytest.mark.parametrize("chapter", ROWS)
def test_every_row_has_a_drill_in_its_chapter(chapter):
    covered = {q.row for q in EVERY if q.chapter == chapter}
    assert not set(ROWS[chapter]) - covered


def test_a_drill_begins_with_a_row_of_its_chapter():
    for question in EVERY:
        if question.chapter in ROWS:
            assert question.row in ROWS[question.chapter], question.id


def test_ids_stand_once_over_all_files():
    found = [q.id for path in reading.BANK.glob("*.yaml") for q in reading.read(path)]
    assert len(found) == len(set(found)) == len(EVERY)


def test_there_are_enough_numeric_questions():
    assert len(NUMERIC) >= 20


def words(question):
    """All that a reader may see of a question."""
    parts = [question.prompt, question.explanation, question.folklore, question.cell]
    parts += [question.model_answer, *question.points]
    parts += [text for c in question.choices for text in (c.text, c.why)]
    if question.numeric:
        parts += [question.numeric.worked, *(s.hint for s in question.numeric.slips)]
    return "\n".join(parts)


@each(EVERY)
def test_no_question_shows_what_a_reader_should_not_see(question):
    text = words(question)
    for sign in ("TODO", "FIXME", "../" + "shared", "source_notes", "corrections.md"):
        assert sign not in text
    assert not re.search("[\u2e80-\u9fff\uff00-\uffef]", text)
    assert "—" not in text


@each(EVERY)
def test_marks_of_markdown_are_closed(question):
    text = words(question)
    assert text.count("`") % 2 == 0
    assert text.count("**") % 2 == 0 or question.numeric


@each(CHOICE)
def test_only_the_keyed_choices_are_right(question):
    letters = LETTERS[: len(question.choices)]
    sizes = [1] if question.kind == "single" else range(1, len(letters) + 1)
    for size in sizes:
        for chosen in itertools.combinations(letters, size):
            verdict = drills.grade(question, chosen)
            assert verdict.right == (chosen == question.key)
            assert verdict.score == (1.0 if chosen == question.key else 0.0)


@each(CHOICE)
def test_every_choice_says_why(question):
    for letter, choice in zip(LETTERS, question.choices, strict=False):
        assert choice.why, f"{question.id} {letter}"
        reasons = drills.grade(question, letter).reasons
        assert (letter, choice.text, choice.why) in reasons


def test_the_place_of_the_right_choice_gives_nothing_away():
    keys = [q.key[0] for q in EVERY if q.kind == "single"]
    for letter in "ABCD":
        assert keys.count(letter) <= 0.35 * len(keys)


def test_the_longest_choice_is_not_a_safe_guess():
    single = [q for q in EVERY if q.kind == "single"]
    longest = [max(q.choices, key=lambda c: len(c.text)).right for q in single]
    assert sum(longest) <= 0.5 * len(single)


@pytest.mark.parametrize("chapter", ROWS)
def test_the_named_sections_stand_in_the_chapter(chapter):
    found = sorted(NOTEBOOKS.glob(f"{chapter}_*.ipynb"))
    if not found:
        pytest.skip(f"chapter {chapter} is not written yet")
    cells = json.loads(found[0].read_text(encoding="utf-8"))["cells"]
    text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    headings = {h.strip().lower() for h in re.findall(r"(?m)^#+ +(.*)$", text)}
    named = {q.cell for q in EVERY if q.chapter == chapter}
    assert not {cell for cell in named if cell.lower() not in headings}


# --- Numbers ----------------------------------------------------------------------------


def variants(answer, unit):
    """The same amount as people write it."""
    measures = templates.quantities.unit(unit).measures
    return {
        "bytes": [f"{answer / 1e9:.9g} GB", f"{answer / 2**30:.9g} GiB"]
        + [f"{answer / 1e6:.9g}MB", f"{answer:.8e}", f"{answer * 8 / 1e9:.9g} Gb"],
        "seconds": [f"{answer * 1e3:.9g} ms", f"{answer * 1e6:.9g} us", f"{answer:.9g} s"],
        "rate": [f"{answer / 1e9:.9g} GB/s", f"{answer * 8 / 1e9:.9g} Gb/s"],
        "count": [f"{answer:.9g}", f"{answer:.8e}"],
    }[measures]


@each(NUMERIC)
def test_fifty_draws_of_every_numeric_question(question):
    for seed in (None, *range(50)):
        drill = drills.ask(question, seed)
        assert drill == drills.ask(question, seed)
        assert math.isfinite(drill.answer) and drill.answer > 0
        assert "{" not in drill.prompt + drill.worked + drill.explanation
        own = templates.shown(drill.answer, question.numeric.unit)
        assert own in drill.worked and drills.grade(drill, own).right
        for text in variants(drill.answer, question.numeric.unit):
            assert drills.grade(drill, text).right, (text, drill.worked)
        for factor in (2, 0.5):
            wrong = drills.grade(drill, f"{drill.answer * factor:.9e}")
            assert wrong.kind == "wrong" and wrong.hint


@each(NUMERIC)
def test_seeds_draw_different_numbers(question):
    assert len({drills.ask(question, seed).prompt for seed in range(50)}) >= 2


@each(NUMERIC)
def test_a_slip_is_refused_with_its_own_hint(question):
    drill = drills.ask(question)
    assert len(drill.slips) >= 1
    for value, hint in drill.slips:
        verdict = drills.grade(drill, f"{value:.9e}")
        assert (verdict.kind, verdict.hint) == ("wrong", hint)


@each(NUMERIC)
def test_the_answer_moves_with_the_numbers(question):
    """A typed answer would stay the same."""
    assert len({round(drills.ask(question, seed).answer, 12) for seed in range(50)}) >= 2


@pytest.mark.parametrize("question_id", BY_HAND)
def test_counted_by_hand(question_id):
    """An independent count, from the messages themselves, gives the same number."""
    for seed in (None, *range(8)):
        drill = drills.ask(question_id, seed)
        expected = BY_HAND[question_id](drill.values)
        assert drill.answer == pytest.approx(expected, rel=rings_by_hand.TOLERANCE)


def test_enough_questions_are_counted_by_hand():
    assert not set(BY_HAND) - set(ids(NUMERIC))
    assert len(rings_by_hand.ANSWERS) >= 12
    assert set(memory_by_hand.ANSWERS) == {q.id for q in NUMERIC if q.row[0] == "M"}
    assert set(moe_by_hand.ANSWERS) == {q.id for q in NUMERIC if q.row[0] == "E"}
    assert set(pipeline_by_hand.ANSWERS) == {q.id for q in NUMERIC if q.row[0] == "P"}


def test_the_classic_numbers():
    assert drills.grade("C16a", "49 GB").right
    assert drills.ask("C16b").answer == pytest.approx(196e9)
    assert drills.ask("C12a").answer == pytest.approx(0.49)
    assert drills.grade("M02a", "126 GB").right
    assert drills.grade("M18a", "42 GB").right
    assert drills.ask("M17b").answer == pytest.approx(36.75e9)
    assert drills.ask("M23b").answer == pytest.approx(8.5)
    # 4,096 tokens to 8 experts of 256 on 8 ranks, 7,168 numbers in bf16, four exchanges
    assert drills.ask("E05b").answer == pytest.approx(4 * 4096 * 8 * 7168 * 2 * 7 / 8)


def test_what_the_drills_say_of_nccl_is_what_its_cost_model_says():
    """C28a, C29a and C32a: no tree on one node, a tree at 1 GiB on 512 ranks, and no
    fixed size in between."""
    sizes = [2**power for power in range(10, 31)]

    def largest_with_a_tree(nodes):
        setup = nccl.dgx_h100(nodes)
        return max((n for n in sizes if nccl.choose(setup, n)[0] == "Tree"), default=0)

    assert largest_with_a_tree(1) == 0
    assert 8 * facts.MIB <= largest_with_a_tree(2) <= 32 * facts.MIB
    assert largest_with_a_tree(64) == facts.GIB


# --- The grader -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        ("49 GB", "right", ""),
        ("49e9", "right", ""),
        ("45.6 GiB", "right", ""),
        ("49", "right", ""),
        (49, "right", ""),
        ("392 Gb", "right", ""),
        ("98 GB", "wrong", "Send and receive added"),
        ("24.5 GB", "wrong", "One phase only"),
        ("392 GB", "wrong", "all GPUs send together"),
        ("49 GiB", "wrong", "GiB"),
        ("45.6 GB", "wrong", "GiB"),
        ("49 MB", "wrong", "power of a thousand"),
        ("6.125 GB", "wrong", "bits"),
        ("-49 GB", "wrong", "positive"),
        ("300 GB", "wrong", "Too large"),
        ("0.3 GB", "wrong", "Too small"),
        ("49 s", "unreadable", "seconds"),
        ("a lot", "unreadable", "not a number"),
        ("", "unanswered", ""),
        (None, "unanswered", ""),
    ],
)
def test_verdicts_on_the_ring_of_eight(answer, kind, says):
    verdict = drills.grade("C16a", answer)
    assert verdict.kind == kind
    assert says.lower() in (verdict.hint + verdict.message).lower()
    assert verdict.score == (kind == "right")


def test_an_unknown_letter_and_two_letters_for_a_single_question_do_not_count():
    for answer in ("Z", "AB"):
        verdict = drills.grade("C02a", answer)
        assert verdict.kind == "unreadable" and not verdict.counts


def test_letters_may_be_written_in_several_ways():
    key = drills.ask("C03a").answer
    for answer in (key, list(key), "".join(key), ", ".join(key), " ".join(key).lower()):
        assert drills.grade("C03a", answer).right


def test_a_multi_verdict_names_what_is_missed_and_what_is_too_much():
    message = drills.grade("C03a", "AC").message
    assert "missed B, D" in message and "C should not" in message


@each(OPEN)
def test_an_open_question_scores_its_share_of_points(question):
    count = len(question.points)
    assert drills.grade(question, range(count)).score == 1.0
    assert drills.grade(question, [0]).score == pytest.approx(1 / count)
    with pytest.raises(ValueError, match="points run from 0"):
        drills.grade(question, [count])


def test_unknown_ids_topics_and_levels_are_named():
    with pytest.raises(ValueError, match="no drill has the id 'C99z'"):
        drills.ask("C99z")
    with pytest.raises(ValueError, match="topic must be one of collectives, ring"):
        drills.questions("rings")
    with pytest.raises(ValueError, match="level must be"):
        drills.questions("ring", level=4)


# --- Reading the bank --------------------------------------------------------------------

GOOD = """
topic: sample
chapter: "02"
questions:
- id: C01a
  level: 1
  kind: single
  cell: Somewhere
  prompt: Which?
  choices:
  - {text: this, right: true}
  - {text: that, why: wrong}
  - {text: neither, why: wrong}
  explanation: Because.
"""
NUMBER = GOOD.replace("kind: single", "kind: numeric")
NUMBER = (
    NUMBER[: NUMBER.index("  choices")]
    + """\
  numeric:
    parameters: {ranks: [8, 4]}
    answer: costs.collectives.cost("all_reduce", "ring", ranks, 1e9).bytes_sent
    unit: GB
    worked: "{answer:GB}"
  explanation: Because.
"""
)


def written(tmp_path, text):
    path = tmp_path / "sample.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_good_files_are_read(tmp_path):
    assert reading.read(written(tmp_path, GOOD))[0].key == ("A",)
    assert reading.read(written(tmp_path, NUMBER))[0].kind == "numeric"


ANSWER = 'costs.collectives.cost("all_reduce", "ring", ranks, 1e9).bytes_sent'


@pytest.mark.parametrize(
    ("text", "old", "new", "rule"),
    [
        (GOOD, "id: C01a", "id: ring1", "id must be a row and a letter"),
        (GOOD, "level: 1", "level: 9", "level must be one of"),
        (GOOD, "kind: single", "kind: essay", "kind must be one of"),
        (GOOD, "prompt: Which?", "prompt: ''", "prompt must not be empty"),
        (GOOD, "prompt: Which?", "promt: Which?", "unknown key 'promt'"),
        (GOOD, "  prompt: Which?\n", "", "missing 1 required .* 'prompt'"),
        (GOOD, "text: that, why: wrong", "text: that", "'that' needs a why"),
        (GOOD, "text: that, why: wrong", "text: that, right: true", "exactly one right"),
        (GOOD, "text: that,", "text: this,", "equal choices"),
        (GOOD, "why: wrong", "why: no", "why must be text, not False: quote it"),
        (GOOD, "  - {text: neither, why: wrong}\n", "", "choices must number 3 to 8"),
        (GOOD, "topic: sample", "topic: other", "topic must be the file's name"),
        (GOOD, 'chapter: "02"\n', "", "needs the key 'chapter'"),
        (NUMBER, ANSWER, "49e9", "answer must come from a function of course.costs"),
        (NUMBER, ANSWER, "ranks * 2", "answer must come from a function of course.costs"),
        (NUMBER, "[8, 4]", "[8]", "needs a list of two or more values"),
        (NUMBER, "unit: GB", "unit: furlongs", "must be a known unit"),
        (NUMBER, "{answer:GB}", "49 GB", "worked must hold {answer:unit}"),
        (NUMBER, ANSWER, "open('x').read()", "only costs. and facts. may be called"),
    ],
)
def test_a_bad_file_is_refused_with_file_id_and_rule(tmp_path, text, old, new, rule):
    assert old in text
    with pytest.raises(ValueError, match=rule) as caught:
        reading.read(written(tmp_path, text.replace(old, new)))
    assert str(caught.value).startswith("sample.yaml: ")


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "costs.__class__",
        "costs.collectives.cost.__globals__",
        "costs.bandwidth.np.zeros(3)",
        "costs.collectives.dataclass",
        "'{0}'.format(ranks)",
        "ranks.bit_length()",
        "[x for x in ranks]",
        "lambda: 1",
        "ranks if ranks else 1",
        "ranks and 1",
        "unknown + 1",
        "costs.collectives.cost(**ranks)",
        "1 +",
        "True",
    ],
)
def test_expressions_understand_nothing_else(text):
    with pytest.raises(ValueError, match=r"expression"):
        expressions.evaluate(text, {"ranks": 8})


def test_expressions_do_arithmetic_and_calls():
    names = {"n": 4, "link": facts.NVLINK4}
    assert expressions.evaluate("-(n - 1) / 2 ** 2 * 8", names) == -6
    assert expressions.evaluate("link.seconds(0)", names) == 3.4e-6
    assert expressions.evaluate("facts.MIB", {}) == 2**20
    cost = 'costs.collectives.cost("all_reduce", "ring", ranks=n, nbytes=100).bytes_sent'
    assert expressions.evaluate(cost, names) == 150


def test_templates_write_expressions_and_units():
    names = {"n": 1024, "m": 49e9, "word": "ring"}
    filled = templates.fill("{n} {2 * (n - 1)} {m:GB} {m / 2:GiB} {word}", names)
    assert filled == "1,024 2,046 49 GB 22.82 GiB ring"


def test_markdown_is_written_as_html_and_nothing_else_gets_through():
    html = markdown.to_html("a **b** `x < y **z**`\nc\n\n- one\n- *two*\n\n```\n1 < 2\n```")
    assert html == (
        "<p>a <strong>b</strong> <code>x &lt; y **z**</code> c</p>\n"
        "<ul><li>one</li><li><em>two</em></li></ul>\n<pre>1 &lt; 2</pre>"
    )
    assert "<script>" not in markdown.to_html("<script>alert(1)</script>")
    assert "2*3*4" in markdown.inline("2*3*4")


# --- Sheets and sessions -----------------------------------------------------------------


@pytest.mark.parametrize("topic", drills.topics())
def test_a_sheet_holds_every_question_once_with_its_answer_folded(topic):
    text = drills.sheet(topic)
    for question in drills.questions(topic):
        assert text.count(f"## {question.id} ") == 1
    assert text.count("<details>") == text.count("</details>")
    assert text.count("<summary>Answer</summary>") == len(drills.questions(topic))
    assert "{" not in re.sub(r"`[^`]*`", "", text)
    assert text == drills.sheet(topic)


def at(session, question_id):
    position = [c.drill.question.id for c in session.cards].index(question_id)
    session.go(position)
    return session


@pytest.mark.parametrize("topic", drills.topics())
def test_a_reader_can_answer_everything_right(topic):
    session = Session(topic)
    for position, card in enumerate(session.cards):
        session.go(position)
        question = card.drill.question
        if question.kind == "open":
            session.act("check", "as I said")
            for point in range(len(question.points)):
                session.act("tick", point=point)
        elif question.kind == "numeric":
            unit = question.numeric.unit
            session.act("check", templates.shown(card.drill.answer, unit))
        else:
            session.act("check", list(question.key))
        json.dumps(session.state())
    assert session.score == (len(session.cards), len(session.cards))


def test_a_wrong_number_gets_a_hint_and_not_the_answer():
    session = at(Session("ring"), "C16a")
    session.act("check", "98 GB")
    said = session.state()["feedback"]
    assert "Send and receive added" in said and "49 GB" not in said
    assert session.score == (0, 1)
    session.act("check", "49 GB")
    assert session.score == (1, 1) and "49 GB" in session.state()["feedback"]


def test_unreadable_answers_leave_the_score_alone():
    session = at(Session("ring"), "C16a")
    session.act("check", "what?")
    assert session.score == (0, 0)
    session.act("check", "49 GB")
    session.act("check", "49 apples")
    assert session.score == (1, 1)


def test_showing_the_answer_costs_the_point_unless_it_was_right():
    session = at(Session("ring"), "C16a")
    session.act("reveal", "")
    assert session.score == (0, 1) and "49 GB" in session.state()["feedback"]
    session.act("check", "49 GB")
    session.act("reveal", "49 GB")
    assert session.score == (1, 1)


def test_new_numbers_change_the_question_and_clear_the_field():
    session = at(Session("ring"), "C16a")
    before = session.state()
    session.act("numbers", "49 GB")
    after = session.state()
    assert after["asked"] != before["asked"] and after["given"] == after["feedback"] == ""
    assert (
        len({(session.act("numbers"), session.state()["prompt"])[1] for _ in range(9)}) > 3
    )
    at(session, "C15a").act("numbers")
    assert session.card.drill.question.id == "C15a"


def test_paging_keeps_answers_and_stops_at_the_ends():
    session = Session("ring")
    session.act("back", ["B"])
    assert session.position == 0 and session.state()["given"] == ["B"]
    session.act("next", ["B"])
    session.act("back", ["A"])
    assert session.state()["given"] == ["B"]
    session.go(len(session.cards) - 1)
    assert session.state()["last"]
    session.act("next")
    assert session.state()["last"]


def test_ticking_twice_unticks():
    session = at(Session("ring"), "C15c")
    session.act("check", "chunks")
    session.act("tick", point=1)
    assert session.state()["ticked"] == [1] and session.score[0] == pytest.approx(0.2)
    session.act("tick", point=1)
    assert session.score == (0, 0)


def test_a_seed_makes_the_whole_quiz_repeatable():
    first, second = Session("ring", seed=3), Session("ring", seed=3)
    assert [c.drill for c in first.cards] == [c.drill for c in second.cards]
    assert [c.drill for c in first.cards] != [c.drill for c in Session("ring").cards]


def test_a_level_narrows_the_quiz():
    session = Session("ring", level=1)
    assert {c.drill.question.level for c in session.cards} == {1}
    assert session.title == f"Drills: ring, level 1, {len(session.cards)} questions"


def test_an_unknown_deed_is_refused():
    with pytest.raises(ValueError, match="does must be one of"):
        Session("ring").act("cheat")


# --- In the notebook ----------------------------------------------------------------------


def test_the_stored_form_is_the_widget_and_one_stable_line(monkeypatch):
    shown = []
    monkeypatch.setattr(
        "IPython.display.display", lambda data, raw=False: shown.append((data, raw))
    )
    drills.show("ring")
    drills.show("beyond_ring", level=3, seed=1)
    (first, raw), (second, _) = shown
    assert raw and set(first) == {"application/vnd.jupyter.widget-view+json", "text/plain"}
    assert first["text/plain"] == f"Drills: ring, {len(drills.questions('ring'))} questions"
    assert re.fullmatch(
        r"Drills: beyond ring, level 3, \d+ questions", second["text/plain"]
    )


def test_messages_from_the_page_reach_the_session():
    from course.drills.quiz import Quiz

    quiz = Quiz(Session("ring"))
    quiz._on_message(quiz, {"does": "check", "given": ["C"]}, [])
    assert quiz.state["feedback"] and quiz.state["given"] == ["C"]
    assert "cdn" not in quiz._esm and "http" not in quiz._esm + quiz._css


@pytest.fixture
def quiz_page(lab_page, tmp_path):
    import nbformat

    cell = nbformat.v4.new_code_cell('from course import drills\ndrills.show("ring")')
    notebook = nbformat.v4.new_notebook(cells=[cell])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    folder = tmp_path / "drills"
    folder.mkdir()
    nbformat.write(notebook, folder / "quiz.ipynb")
    lab_page.open(folder / "quiz.ipynb")
    lab_page.run_all()
    return lab_page


def focused(page):
    return page.evaluate("document.activeElement.textContent")


def choose_the_third(page, quiz) -> None:
    """With Space and arrows. A page that is still busy can take the focus: then again."""
    radios = quiz.get_by_role("radio")
    for _ in range(60):
        radios.first.focus()
        for key in ("Space", "ArrowDown", "ArrowDown"):
            page.keyboard.press(key)
        if radios.nth(2).is_checked():
            return
        page.wait_for_timeout(1000)
    raise AssertionError("arrow keys do not reach the third choice")


@pytest.mark.browser
def test_the_quiz_in_a_real_page_by_keyboard_alone(quiz_page):
    page = quiz_page.page
    quiz = page.locator(".drill")
    choose_the_third(page, quiz)
    page.keyboard.press("Enter")
    quiz.get_by_text("Right.", exact=True).wait_for()
    page.keyboard.press("Tab")
    assert focused(page) == "Check"
    page.keyboard.press("Tab")
    assert focused(page) == "Next"
    for number in (2, 3, 4):
        page.keyboard.press("Enter")
        quiz.get_by_text(f"Question {number} of").wait_for()
    field = quiz.get_by_label("Answer in GB")
    field.focus()
    page.keyboard.type("98 GB")
    page.keyboard.press("Enter")
    quiz.get_by_text("Send and receive added").wait_for()
    page.keyboard.press("Control+a")
    page.keyboard.type("45.6 GiB")
    page.keyboard.press("Enter")
    quiz.get_by_text("Right: 49 GB.").wait_for()
    assert "score 2 of 2" in quiz.inner_text()
    quiz_page.screenshot()
    assert len(quiz_page.code_cells()) == 1, "a key reached JupyterLab's shortcuts"
    quiz_page.assert_clean()
