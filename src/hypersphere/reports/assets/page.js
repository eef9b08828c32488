// Unpacks plotly.js, which travels inside the page compressed, and draws the plots.
const read = (id) => { const node = document.getElementById(id); return node ? JSON.parse(node.textContent) : null; };
let plots = read("plots") || {};
const sheet = read("pictures");
const dark = matchMedia("(prefers-color-scheme: dark)");

let loading = null;
function plotly() {
  loading = loading || (async () => {
    const bytes = Uint8Array.from(atob(document.getElementById("plotly").textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  })();
  return loading;
}

// The picture behind a point: a cell of one sheet of thumbnails.
function showPicture(index, event) {
  const box = document.getElementById("picture"), [w, h] = sheet.size, zoom = Math.max(1, Math.round(96 / w));
  const cell = sheet.rows ? sheet.rows[index] : index;
  if (cell === undefined || cell === null) return;
  box.style.cssText = `display:block; width:${w * zoom + 4}px; height:${h * zoom + 4}px; ` +
    `left:${Math.min(event.clientX + 12, innerWidth - w * zoom - 16)}px; top:${event.clientY + 12}px; ` +
    `background-image:url(${sheet.data}); background-size:${sheet.columns * w * zoom}px auto; ` +
    `background-position:-${(cell % sheet.columns) * w * zoom}px -${Math.floor(cell / sheet.columns) * h * zoom}px;`;
}

// A layout in the colors of the page, with room for its legend below.
function adapted(layout, data, node) {
  const style = getComputedStyle(document.documentElement), color = (name) => style.getPropertyValue(name).trim();
  const found = structuredClone(layout);
  found.font = { ...found.font, color: color("--ink") };
  for (const axis of ["xaxis", "yaxis"]) {
    if (found[axis]) Object.assign(found[axis], { gridcolor: color("--line"), zerolinecolor: color("--line") });
  }
  makeRoom(found, data.filter((trace) => trace.name && trace.showlegend !== false), node.clientWidth);
  return found;
}

// Below the title of the axis stands the legend, in as many rows as it needs: the plot keeps its height.
function makeRoom(layout, named, width) {
  const below = layout.scene ? 5 : 76, inner = layout.scene ? Math.min(width, 500) : layout.height - 110;
  const longest = Math.max(0, ...named.map((trace) => trace.name.length));
  const across = Math.max(1, Math.floor(width / (7 * longest + 50)));
  const legend = named.length > 1 ? 20 * Math.ceil(named.length / across) + 8 : 0;
  layout.margin = { ...layout.margin, b: below + legend };
  layout.height = inner + layout.margin.t + layout.margin.b;
  layout.legend = { ...layout.legend, y: -below / inner, yanchor: "top", maxheight: legend + 20 };
}

// Black would vanish in the dark.
function visibleIn(data) {
  if (!dark.matches) return data;
  return JSON.parse(JSON.stringify(data).replaceAll("#000000", "#f0f0f0"));
}

async function drawOne(node) {
  const plot = plots[node.dataset.plot];
  if (!plot) return;
  await plotly();
  const first = !node.data;
  try {
    await Plotly.react(node, visibleIn(plot.data), adapted(plot.layout, plot.data, node), { responsive: true, displayModeBar: false });
  } catch (error) {
    node.textContent = "This plot needs WebGL, which this browser does not offer.";
    return;
  }
  if (first && sheet && node.dataset.plot === "features") {
    let mouse = { clientX: 0, clientY: 0 };
    node.addEventListener("mousemove", (event) => { mouse = event; });
    node.on("plotly_hover", (event) => showPicture(event.points[0].customdata, mouse));
    node.on("plotly_unhover", () => { document.getElementById("picture").style.display = "none"; });
  }
}

const folded = (node) => node.closest("details:not([open])");

async function draw() {
  for (const node of document.querySelectorAll(".plot")) {
    if (!folded(node)) await drawOne(node);
  }
  document.body.dataset.ready = "yes";
}

document.addEventListener("toggle", (event) => {
  for (const node of event.target.querySelectorAll(".plot")) if (!folded(node)) drawOne(node);
}, true);
dark.addEventListener("change", draw);

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-show]");
  if (!button) return;
  const node = document.querySelector(`.plot[data-plot="${button.dataset.plot}"]`);
  const visible = button.dataset.show === "all" ? true : "legendonly";
  const traces = node.data.map((trace, index) => (trace.showlegend === false ? -1 : index)).filter((i) => i >= 0);
  Plotly.restyle(node, { visible }, traces);
});

// A page that is watched: a script beside it brings what is new. Sections are replaced one by one,
// plots keep their nodes and with them zoom and camera, and what was unfolded stays so.
window.hypersphereNews = (news) => {
  plots = news.plots;
  const holder = document.createElement("div");
  holder.innerHTML = news.body;
  const main = document.querySelector("main");
  const named = (root, name) => [...root.querySelectorAll("section[data-section]")].find((s) => s.dataset.section === name);
  const now = new Set();
  for (const section of [...holder.children]) {
    const old = named(main, section.dataset.section);
    now.add(section.dataset.section);
    if (old) {
      const open = [...old.querySelectorAll("details")].map((d) => d.open);
      section.querySelectorAll("details").forEach((d, i) => { d.open = Boolean(open[i]); });
      for (const place of section.querySelectorAll(".plot")) {
        const kept = old.querySelector(`.plot[data-plot="${place.dataset.plot}"]`);
        if (kept) place.replaceWith(kept);
      }
      old.replaceWith(section);
    } else {
      main.append(section);
    }
  }
  for (const section of main.querySelectorAll("section[data-section]")) {
    if (!now.has(section.dataset.section)) section.remove();
  }
  if (news.done) clearInterval(window.hypersphereTimer);
  document.body.dataset.news = String(Number(document.body.dataset.news || 0) + 1);
  draw();
};
if (document.body.dataset.every) {
  window.hypersphereTimer = setInterval(() => {
    const script = document.createElement("script");
    script.src = `${document.body.dataset.source}?${Date.now()}`;
    script.onload = script.onerror = () => script.remove();
    document.head.append(script);
  }, 1000 * Number(document.body.dataset.every));
}
draw();
