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

// moved(next): called when the reader has moved it; next: positions one step further
function controlOf(spec, model, moved) {
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
    const before = model.get("positions");
    const position = part.get();
    if (spec.kind === "slider") part.set(position);
    model.set("positions", { ...before, [spec.name]: position });
    const further = position + Math.sign(position - before[spec.name]);
    const steps = spec.kind === "slider" && further >= 0 && further < spec.texts.length;
    moved(steps ? { ...before, [spec.name]: further } : null);
    model.save_changes();
  });
  show();
  return { row, show };
}

// Pictures in the order of the reader's moves. A step that was asked for ahead of need is
// shown at once; an answer to an earlier move never replaces a later picture.
function showsLatest(model, show) {
  const key = (positions) => JSON.stringify(Object.entries(positions).sort());
  const moves = new Map(); // positions -> number of the reader's last move to them
  let count = 0;
  let shown = { move: 0, source: null };
  let ahead = { at: null, source: null };
  let next = null;

  function take(source) {
    const now = JSON.parse(source);
    const at = key(now.at);
    const move = at === key(model.get("positions")) ? count : moves.get(at) ?? count;
    if (move < shown.move || source === shown.source) return;
    shown = { move, source };
    show(now);
  }
  function answered() {
    take(model.get("picture"));
    if (!next || shown.move < count) return; // more answers are on their way
    if (key(next) !== ahead.at) model.send({ ahead: next });
    next = null;
  }
  function moved(further) {
    const now = key(model.get("positions"));
    moves.set(now, ++count);
    next = further;
    if (ahead.at === now) take(ahead.source);
  }
  function arrived(message) {
    if (!message.ahead) return;
    ahead = { at: key(JSON.parse(message.ahead).at), source: message.ahead };
  }
  return { answered, moved, arrived };
}

function render({ model, el, signal }) {
  const picture = painter(model, signal);
  const text = node("p", { class: "rr-text", "aria-live": "polite" });
  const caption = node("p", { class: "rr-caption" }, model.get("caption"));
  caption.hidden = !model.get("caption");
  const latest = showsLatest(model, (now) => {
    text.textContent = now.text ?? "";
    text.hidden = !now.text;
    if (now.error) picture.fail(now.error);
    else picture.draw(now.figure);
  });
  const controls = model.get("controls").map((s) => controlOf(s, model, latest.moved));
  el.classList.add("rr-widget");
  if (controls.length) {
    el.append(node("div", { class: "rr-controls" }, ...controls.map((c) => c.row)));
  }
  el.append(picture.card, text, caption);

  const showControls = () => controls.forEach((control) => control.show());
  model.on("change:picture", latest.answered);
  model.on("change:positions", showControls);
  model.on("msg:custom", latest.arrived);
  latest.answered();
  return () => {
    model.off("change:picture", latest.answered);
    model.off("change:positions", showControls);
    model.off("msg:custom", latest.arrived);
    picture.close();
  };
}

export default { render };
