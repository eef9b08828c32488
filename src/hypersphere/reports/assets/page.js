// Unpacks plotly.js, which travels inside the page compressed, and draws the plots.
const read = (id) => { const node = document.getElementById(id); return node ? JSON.parse(node.textContent) : null; };

async function plotly() {
  const bytes = Uint8Array.from(atob(document.getElementById("plotly").textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

// The picture behind a point: a cell of one sheet of thumbnails.
function showPicture(sheet, index, event) {
  const box = document.getElementById("picture"), [w, h] = sheet.size, zoom = Math.max(1, Math.round(96 / w));
  const cell = sheet.rows ? sheet.rows[index] : index;
  if (cell === undefined || cell === null) return;
  box.style.cssText = `display:block; width:${w * zoom + 4}px; height:${h * zoom + 4}px; ` +
    `left:${Math.min(event.clientX + 12, innerWidth - w * zoom - 16)}px; top:${event.clientY + 12}px; ` +
    `background-image:url(${sheet.data}); background-size:${sheet.columns * w * zoom}px auto; ` +
    `background-position:-${(cell % sheet.columns) * w * zoom}px -${Math.floor(cell / sheet.columns) * h * zoom}px;`;
}

async function draw() {
  const plots = read("plots");
  if (!plots || !Object.keys(plots).length) { document.body.dataset.ready = "yes"; return; }
  await plotly();
  const sheet = read("pictures");
  for (const node of document.querySelectorAll(".plot")) {
    const plot = plots[node.dataset.plot];
    try {
      await Plotly.newPlot(node, plot.data, plot.layout, { responsive: true, displaylogo: false, displayModeBar: "hover" });
    } catch (error) {
      node.textContent = "This plot needs WebGL, which this browser does not offer.";
      continue;
    }
    if (sheet && node.dataset.plot === "features") {
      let mouse = { clientX: 0, clientY: 0 };
      node.addEventListener("mousemove", (event) => { mouse = event; });
      node.on("plotly_hover", (event) => showPicture(sheet, event.points[0].customdata, mouse));
      node.on("plotly_unhover", () => { document.getElementById("picture").style.display = "none"; });
    }
  }
  for (const button of document.querySelectorAll("button[data-show]")) {
    const node = document.querySelector(`.plot[data-plot="${button.dataset.plot}"]`);
    button.addEventListener("click", () => {
      const visible = button.dataset.show === "all" ? true : "legendonly";
      const traces = node.data.map((trace, index) => (trace.showlegend === false ? -1 : index)).filter((i) => i >= 0);
      Plotly.restyle(node, { visible }, traces);
    });
  }
  document.body.dataset.ready = "yes";
}
draw();
