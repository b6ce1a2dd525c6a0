// The quiz page: draws the state that Python sends, reports what the reader does.
// state: see Session.state in course/drills/session.py

// Without the attribute, on the very element that has the focus, JupyterLab takes arrow
// keys and letters for its own shortcuts.
const FOCUSABLE = ["INPUT", "TEXTAREA", "BUTTON"];

function element(tag, attributes = {}, children = []) {
  const made = document.createElement(tag);
  if (FOCUSABLE.includes(made.tagName)) made.dataset.lmSuppressShortcuts = "true";
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else if (name === "html") made.innerHTML = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

let made = 0; // keeps the names of radio groups apart when a page has several quizzes

function choices(state) {
  const name = `drill-${(made += 1)}`;
  const type = state.kind === "single" ? "radio" : "checkbox";
  const lines = state.options.map(([letter, html]) => {
    const input = element("input", { type, name, value: letter });
    input.checked = state.given.includes(letter);
    const text = element("span", { html: `<b>${letter}</b> ${html}` });
    return element("label", {}, [input, text]);
  });
  const legend = element("legend", { text: state.legend });
  return element("fieldset", {}, [legend, ...lines]);
}

function field(state) {
  const long = state.kind === "open";
  const input = element(long ? "textarea" : "input", { placeholder: state.placeholder });
  if (long) input.rows = 5;
  else input.type = "text";
  input.value = state.given;
  input.autocomplete = "off";
  return element("label", { class: "drill-field" }, [
    element("span", { text: state.legend }),
    input,
  ]);
}

function answer(state, slot) {
  if (state.options.length === 0) return slot.querySelector("input, textarea").value;
  return [...slot.querySelectorAll("input:checked")].map((input) => input.value);
}

function tickList(state, send) {
  const lines = state.points.map((html, position) => {
    const input = element("input", { type: "checkbox" });
    input.checked = state.ticked.includes(position);
    input.addEventListener("change", () => send("tick", { point: position }));
    return element("label", {}, [input, element("span", { html })]);
  });
  const legend = element("legend", { text: "Tick what you said" });
  return element("fieldset", {}, [legend, ...lines]);
}

function render({ model, el }) {
  const head = element("div", { class: "drill-head" });
  const prompt = element("div", { "aria-live": "polite", tabindex: "-1" });
  const slot = element("div");
  const points = element("div");
  const feedback = element("div", { role: "status", class: "drill-feedback" });
  const button = (text, does, type = "button") => {
    const made = element("button", { type, text });
    if (does) made.addEventListener("click", () => send(does));
    return made;
  };
  const buttons = {
    check: button("Check", null, "submit"),
    reveal: button("Show answer", "reveal"),
    numbers: button("New numbers", "numbers"),
    back: button("Previous", "back"),
    next: button("Next", "next"),
  };
  const row = element("div", { class: "drill-buttons" }, Object.values(buttons));
  const form = element("form", {}, [prompt, slot, row, feedback, points]);
  el.append(element("div", { class: "drill" }, [head, form]));

  let asked = null;
  function send(does, more = {}) {
    model.send({ does, given: answer(model.get("state"), slot), ...more });
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send("check");
  });
  // JupyterLab keeps Enter from submitting a form, so it is done by hand.
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.target.tagName !== "INPUT") return;
    event.preventDefault();
    event.stopPropagation();
    send("check");
  });

  function ask(state) {
    asked = state.asked;
    prompt.innerHTML = state.prompt;
    slot.replaceChildren(state.options.length ? choices(state) : field(state));
    points.replaceChildren(...(state.points.length ? [tickList(state, send)] : []));
  }

  function draw() {
    const state = model.get("state");
    if (state.asked !== asked) ask(state);
    if (state.points.length && !points.childElementCount) {
      points.append(tickList(state, send));
    }
    head.innerHTML = state.head;
    feedback.innerHTML = state.feedback;
    buttons.check.textContent = state.check_label;
    buttons.reveal.hidden = buttons.numbers.hidden = state.kind !== "numeric";
    const focused = document.activeElement;
    buttons.back.disabled = state.first;
    buttons.next.disabled = state.last;
    if (focused === buttons.back && state.first) prompt.focus();
    if (focused === buttons.next && state.last) prompt.focus();
  }
  model.on("change:state", draw);
  draw();
  return () => model.off("change:state", draw);
}

export default { render };
