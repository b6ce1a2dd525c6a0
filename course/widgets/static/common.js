// Shared by every widget of the course: plotly.js once per page, one painter per picture.
const page = (globalThis.ringToRack ??= { plotly: {} });

// The page's plotly.js of this version; the first figure that asks brings it in.
function plotlyOf(model) {
  const version = model.get("plotly_version");
  page.plotly[version] ??= loadPlotly(model).catch((error) => {
    delete page.plotly[version]; // the next figure may have a kernel that answers
    throw error;
  });
  return page.plotly[version];
}

async function loadPlotly(model) {
  const library = await model.widget_manager.get_model(model.get("library"));
  const stream = new Blob([library.get("source")]).stream();
  const unpacked = stream.pipeThrough(new DecompressionStream("gzip"));
  const code = await new Response(unpacked).text();
  const module = { exports: {} };
  // hidden names keep the bundle from registering with a loader that the page may have
  new Function("module", "exports", "define", code)(module, module.exports, undefined);
  return module.exports;
}

const FOCUSABLE = new Set(["button", "input", "select"]);

function node(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in made && typeof value !== "string") made[name] = value;
    else made.setAttribute(name, value);
  }
  // JupyterLab takes arrow and letter keys for itself unless the focused node says no
  if (FOCUSABLE.has(tag)) made.setAttribute("data-lm-suppress-shortcuts", "true");
  made.append(...children);
  return made;
}

let lastId = 0;
const freshId = (word) => `rr-${word}-${Date.now().toString(36)}-${lastId++}`;

const CONFIG = { displayModeBar: false, responsive: false, doubleClickDelay: 400 };

// A card that holds a picture. draw(figure) always ends with the latest figure given.
function painter(model, signal) {
  const plot = node("div", { class: "rr-plot" });
  const failure = node("p", { class: "rr-error", role: "alert", hidden: true });
  const card = node("div", { class: "rr-card" }, plot, failure);
  let wanted = null;
  let busy = false;
  let width = 0;

  function fail(message) {
    failure.hidden = !message;
    failure.textContent = message || "";
    plot.classList.toggle("rr-stale", Boolean(message));
  }

  async function paint() {
    if (busy || !wanted || !width) return;
    busy = true;
    try {
      const Plotly = await plotlyOf(model);
      while (wanted && !signal?.aborted) {
        const figure = wanted;
        wanted = null;
        const layout = { ...figure.layout, width, autosize: false };
        plot.setAttribute("aria-label", plainTitle(figure));
        await Plotly.react(plot, figure.data, layout, CONFIG);
        plot.rrFigure = figure;
      }
    } catch (error) {
      fail(`This picture could not be drawn: ${error.message}. Run the cell again.`);
      console.warn(error);
    } finally {
      busy = false;
    }
  }

  function draw(figure) {
    fail("");
    wanted = figure;
    plot.style.minHeight = `${figure.layout?.height ?? 360}px`;
    return paint();
  }

  const watcher = new ResizeObserver(() => {
    const now = Math.floor(card.clientWidth);
    if (!now || Math.abs(now - width) < 2) return;
    width = now;
    wanted ??= plot.rrFigure ?? null;
    paint();
  });
  watcher.observe(card);
  plot.setAttribute("role", "img");

  async function close() {
    watcher.disconnect();
    if (plot.rrFigure) (await plotlyOf(model)).purge(plot);
  }
  return { card, draw, fail, close };
}

const plainTitle = (figure) =>
  String(figure.layout?.title?.text ?? "Figure").replace(/<[^>]*>/g, " ");
