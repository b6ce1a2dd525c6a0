// Frames that are all in the page: playing and scrubbing never wait for the kernel.
function filmOf(text) {
  const { base, frames } = JSON.parse(text);
  const figures = frames.map((shot) => ({
    data: Array.from({ length: shot.traces }, (_, i) => shot.data[i] ?? base.data[i]),
    layout: { ...base.layout, ...shot.layout },
  }));
  return { figures, captions: frames.map((shot) => shot.caption) };
}

const SPEEDS = [0.5, 1, 2, 4];

function render({ model, el, signal }) {
  const { figures, captions } = filmOf(model.get("film"));
  const last = figures.length - 1;
  const picture = painter(model, signal);
  const id = freshId("step");

  const back = node("button", { type: "button", "aria-label": "step back" }, "‹ Back");
  const play = node("button", { type: "button", class: "rr-play" }, "Play");
  const forward = node("button", { type: "button", "aria-label": "step forward" }, "Next ›");
  const scrub = node("input", { type: "range", id, min: "0", step: "1" });
  scrub.max = String(last);
  const where = node("output", { class: "rr-value", for: id });
  const speeds = SPEEDS.map((s) => node("option", { value: String(s) }, `${s}×`));
  const speed = node("select", { "aria-label": "speed" }, ...speeds);
  speed.value = "1";
  const caption = node("p", { class: "rr-text" });
  const label = node("label", { for: id, class: "rr-hidden" }, "step");

  let timer = null;
  const position = () => Math.min(Math.max(model.get("position"), 0), last);

  function show() {
    const now = position();
    scrub.value = String(now);
    where.textContent = `${now + 1} of ${last + 1}`;
    scrub.setAttribute("aria-valuetext", `${now + 1} of ${last + 1}: ${captions[now]}`);
    caption.textContent = captions[now];
    caption.hidden = captions.every((text) => !text);
    // a button that loses its place in the tab order would drop the reader's focus
    back.setAttribute("aria-disabled", String(now === 0));
    forward.setAttribute("aria-disabled", String(now === last));
    picture.draw(figures[now]);
  }

  function go(to) {
    model.set("position", Math.min(Math.max(to, 0), last));
    model.save_changes();
  }

  function pause() {
    clearTimeout(timer);
    timer = null;
    play.textContent = "Play";
    caption.setAttribute("aria-live", "polite");
  }

  function next() {
    if (position() === last) return pause();
    go(position() + 1);
    timer = setTimeout(next, (1000 * model.get("seconds_per_frame")) / Number(speed.value));
  }

  play.addEventListener("click", () => {
    if (timer !== null) return pause();
    play.textContent = "Pause";
    caption.setAttribute("aria-live", "off"); // a screen reader could not keep up
    if (position() === last) go(0);
    timer = setTimeout(next, (500 * model.get("seconds_per_frame")) / Number(speed.value));
  });
  back.addEventListener("click", () => (pause(), go(position() - 1)));
  forward.addEventListener("click", () => (pause(), go(position() + 1)));
  scrub.addEventListener("input", () => (pause(), go(Number(scrub.value))));
  model.on("change:position", show);

  el.classList.add("rr-widget");
  const buttons = [back, play, forward, label, scrub, where, speed];
  el.append(node("div", { class: "rr-player" }, ...buttons), picture.card, caption);
  pause();
  show();
  return () => {
    pause();
    model.off("change:position", show);
    picture.close();
  };
}

export default { render };
