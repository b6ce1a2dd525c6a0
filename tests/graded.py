"""What holds of every exercise's grader: a test file has a subclass for its chapter."""

from types import ModuleType

from course.checks import Verdict, check, exercise
from tests.exercise_answers import stub


class Graded:
    """asked: names of exercises; answers: a module with RIGHT and WRONG.

    RIGHT: {exercise: [answer, ...]}; WRONG: {exercise: [(answer, kind, words), ...]}, words
    being a part of what the reader is told. The rest may be set where a chapter says more.
    """

    asked: tuple[str, ...]
    answers: ModuleType
    least_wrong = 4
    in_right: tuple[str, ...] = ()
    in_wrong: tuple[str, ...] = ()

    def pytest_generate_tests(self, metafunc):
        right, wrong = self.answers.RIGHT.items(), self.answers.WRONG.items()
        if "right" in metafunc.fixturenames:
            cases = [(name, answer) for name, some in right for answer in some]
            metafunc.parametrize("name, right", cases, ids=map(self._id, cases))
        elif "wrong" in metafunc.fixturenames:
            cases = [(name, *told) for name, some in wrong for told in some]
            arguments = "name, wrong, kind, words"
            metafunc.parametrize(arguments, cases, ids=map(self._id, cases))
        elif "name" in metafunc.fixturenames:
            metafunc.parametrize("name", self.asked)

    def _id(self, case: tuple) -> str:
        """The exercise, and the answer by its name in the module: it may be a partial."""
        names = {id(value): name for name, value in vars(self.answers).items()}
        return f"{case[0]}: {names.get(id(case[1])) or case[1].__name__}"

    def test_every_exercise_has_answers(self):
        right, wrong = self.answers.RIGHT, self.answers.WRONG
        assert set(self.asked) == set(right) == set(wrong)
        assert all(right.values())
        assert all(len(some) >= self.least_wrong for some in wrong.values())

    def test_a_right_answer_passes(self, name, right):
        verdict = check(name, right)
        assert (verdict.kind, verdict.passed) == ("right", True), verdict.text
        assert verdict.text.startswith("right: ")
        assert all(words in verdict.text for words in self.in_right), verdict.text

    def test_a_wrong_answer_is_told_what_is_wrong(self, name, wrong, kind, words):
        verdict = check(name, wrong)
        assert (verdict.kind, verdict.passed) == (kind, False), verdict.text
        assert words in verdict.text
        assert "course/checks" not in verdict.text
        assert all(words in verdict.text for words in self.in_wrong), verdict.text

    def test_the_stub_is_not_attempted(self, name, capsys):
        attempt = check(name, stub)
        assert attempt == Verdict("not attempted", "not attempted", False)
        assert capsys.readouterr().out == "not attempted\n"

    def test_the_task_fits_the_page(self, name):
        text = repr(exercise(name))
        assert all(len(line) <= 92 for line in text.split("\n"))
        assert exercise(name).signature in text
