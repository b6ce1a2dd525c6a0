// Controls over a figure function that lives in the kernel. Only positions are sent.
function sliderOf(spec, id) {
  const input = node("input", { type: "range", min: "0", id, step: "1" });
  input.max = String(spec.texts.length - 1);
  return {
    input,
    get: () => Number(input.value),
    set: (position) => {
      input.value = String(position);
      input.setAttribute("aria-valuetext", spec.texts[position]);
    },
  };
}

function choiceOf(spec, id) {
  const options = spec.texts.map((text, i) => node("option", { value: String(i) }, text));
  const input = node("select", { id }, ...options);
  return {
    input,
    get: () => Number(input.value),
    set: (position) => (input.value = String(position)),
  };
}

function checkboxOf(spec, id) {
  const input = node("input", { type: "checkbox", id });
  return {
    input,
    get: () => Number(input.checked),
    set: (position) => (input.checked = position === 1),
  };
}

const KINDS = { slider: sliderOf, choice: choiceOf, checkbox: checkboxOf };

function controlOf(spec, model) {
  const id = freshId(spec.name);
  const part = KINDS[spec.kind](spec, id);
  const value = node("output", { class: "rr-value", for: id });
  const row = node("div", { class: `rr-control rr-${spec.kind}` });
  row.append(node("label", { for: id }, spec.label), part.input);
  if (spec.kind === "slider") row.append(value);
  if (spec.about) {
    row.append(node("small", { id: `${id}-about` }, spec.about));
    part.input.setAttribute("aria-describedby", `${id}-about`);
  }
  const show = () => {
    const position = model.get("positions")[spec.name];
    if (part.get() !== position || !value.textContent) part.set(position);
    value.textContent = spec.texts[position];
  };
  part.input.addEventListener("input", () => {
    const positions = { ...model.get("positions"), [spec.name]: part.get() };
    if (spec.kind === "slider") part.set(part.get());
    model.set("positions", positions);
    model.save_changes();
  });
  show();
  return { row, show };
}

function render({ model, el, signal }) {
  const controls = model.get("controls").map((spec) => controlOf(spec, model));
  const picture = painter(model, signal);
  const text = node("p", { class: "rr-text", "aria-live": "polite" });
  const caption = node("p", { class: "rr-caption" }, model.get("caption"));
  caption.hidden = !model.get("caption");
  el.classList.add("rr-widget");
  if (controls.length) {
    el.append(node("div", { class: "rr-controls" }, ...controls.map((c) => c.row)));
  }
  el.append(picture.card, text, caption);

  const showPicture = () => {
    const now = JSON.parse(model.get("picture"));
    text.textContent = now.text ?? "";
    text.hidden = !now.text;
    if (now.error) picture.fail(now.error);
    else picture.draw(now.figure);
  };
  const showControls = () => controls.forEach((control) => control.show());
  model.on("change:picture", showPicture);
  model.on("change:positions", showControls);
  showPicture();
  return () => {
    model.off("change:picture", showPicture);
    model.off("change:positions", showControls);
    picture.close();
  };
}

export default { render };
