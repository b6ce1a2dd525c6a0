// A question, a field, a button; the kernel keeps the answer until a number is committed.
function render({ model, el, signal }) {
  const id = freshId("guess");
  const unit = model.get("unit");
  const label = node("label", { for: id, class: "rr-question" }, model.get("question"));
  const field = node("input", { type: "text", id, autocomplete: "off", size: "14" });
  const button = node("button", { type: "submit" }, "Commit");
  const unitName = node("span", { class: "rr-unit" }, unit);
  const hint = node("p", { class: "rr-caption", id: `${id}-hint` }, model.get("hint"));
  const problem = node("p", { class: "rr-problem", role: "alert" });
  const outcome = node("p", { class: "rr-outcome", "aria-live": "polite", tabindex: "-1" });
  const text = node("p", { class: "rr-text" });
  const row = node("div", { class: "rr-row" }, field, unitName, button);
  const form = node("form", { class: "rr-form" }, label, row, hint);
  hint.hidden = !model.get("hint");
  field.setAttribute("aria-describedby", `${id}-hint`);
  el.classList.add("rr-widget");
  el.append(form, problem, outcome);
  let picture = null;

  function showPicture(figure) {
    if (!picture) {
      picture = painter(model, signal);
      el.append(picture.card, text);
    }
    picture.draw(figure);
  }

  function show() {
    const reply = model.get("reply") ? JSON.parse(model.get("reply")) : {};
    const committed = Boolean(reply.sentence);
    problem.textContent = reply.error ?? "";
    problem.hidden = !reply.error;
    outcome.textContent = reply.sentence ?? "";
    outcome.hidden = !committed;
    text.textContent = reply.text ?? "";
    text.hidden = !reply.text;
    field.readOnly = committed;
    button.hidden = committed;
    field.value ||= model.get("guess").text ?? "";
    field.setAttribute("aria-invalid", String(Boolean(reply.error)));
    if (reply.figure) showPicture(reply.figure);
  }

  function showReply() {
    show();
    if (document.activeElement === document.body || el.contains(document.activeElement)) {
      (model.get("reply").includes('"sentence"') ? outcome : field).focus();
    }
  }

  function commit(event) {
    event.preventDefault();
    if (field.readOnly) return;
    if (!field.value.trim()) {
      problem.textContent = "Write a number first: a guess is enough.";
      problem.hidden = false;
      return;
    }
    const attempt = (model.get("guess").try ?? 0) + 1;
    model.set("guess", { text: field.value, try: attempt });
    model.save_changes();
  }
  form.addEventListener("submit", commit);
  // JupyterLab stops the line break that would submit the form, so Enter is heard here
  field.addEventListener("keydown", (event) => event.key === "Enter" && commit(event));
  model.on("change:reply", showReply);
  show();
  return () => {
    model.off("change:reply", showReply);
    picture?.close();
  };
}

export default { render };
