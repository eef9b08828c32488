"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const canvas = document.getElementById("sphere");
const pen = canvas.getContext("2d");
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
const ink = dark ? "220,225,235" : "40,45,55";
// Colors by the number of neighbors on the hull: 6 is the rule, the others are defects.
const neighbors = { 3: "#CC79A7", 4: "#CC79A7", 5: "#0072B2", 6: "#7F7F7F", 7: "#D55E00", 8: "#E69F00" };
const shown = { contacts: data.contacts.length > 0, hull: true, holes: false, numbers: false };
const names = {
  contacts: "contacts: pairs at the smallest angle (" + data.contacts.length + ")",
  hull: "faces of the convex hull (" + data.faces.length + ")",
  holes: "centers of the holes, sized by their radius (" + data.holes.length + ")",
  numbers: "numbers",
};
let turn = [[1, 0, 0], [0, 0.94, -0.34], [0, 0.34, 0.94]];
let zoom = 1, held = false, spin = 0.003;

const product = (a, b) => a.map(r => b[0].map((_, j) => r.reduce((s, v, k) => s + v * b[k][j], 0)));
function rotate(dx, dy) {
  const [c, s, p, q] = [Math.cos(dx), Math.sin(dx), Math.cos(dy), Math.sin(dy)];
  turn = product([[1, 0, 0], [0, p, -q], [0, q, p]], product([[c, 0, s], [0, 1, 0], [-s, 0, c]], turn));
}
const see = v => turn.map(r => r[0] * v[0] + r[1] * v[1] + r[2] * v[2]);

function draw() {
  const ratio = devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
  canvas.width = w * ratio; canvas.height = h * ratio;
  pen.setTransform(ratio, 0, 0, ratio, w / 2 * ratio, h / 2 * ratio);
  const R = 0.42 * Math.min(w, h) * zoom;
  const ball = pen.createRadialGradient(-R / 3, -R / 3, R / 8, 0, 0, R);
  ball.addColorStop(0, dark ? "#2a2f38" : "#ffffff"); ball.addColorStop(1, dark ? "#181b20" : "#dfe4ea");
  pen.beginPath(); pen.arc(0, 0, R, 0, 7); pen.fillStyle = ball; pen.fill();
  const at = data.points.map(see), items = [];
  const path = (corners) => { pen.beginPath(); corners.forEach((p, k) => pen[k ? "lineTo" : "moveTo"](R * p[0], -R * p[1])); };
  if (shown.hull) data.faces.forEach(face => {
    const corners = face.map(i => at[i]), z = corners.reduce((s, p) => s + p[2], 0) / face.length;
    items.push([z - 0.02, () => {
      path(corners); pen.closePath();
      pen.fillStyle = z > 0 ? `rgba(86,180,233,${0.10 + 0.14 * z})` : "rgba(86,180,233,0.03)"; pen.fill();
      pen.strokeStyle = `rgba(${ink},${z > 0 ? 0.35 : 0.08})`; pen.lineWidth = 0.8; pen.stroke();
    }]);
  });
  if (shown.contacts) data.contacts.forEach(([i, j]) => {
    const z = (at[i][2] + at[j][2]) / 2;
    items.push([z, () => {
      path([at[i], at[j]]);
      pen.strokeStyle = z > 0 ? "#D55E00" : "rgba(213,94,0,0.18)"; pen.lineWidth = z > 0 ? 2.4 : 1.2; pen.stroke();
    }]);
  });
  if (shown.holes) data.holes.forEach(hole => {
    const p = see(hole);
    items.push([p[2] - 0.01, () => {
      pen.beginPath(); pen.arc(R * p[0], -R * p[1], Math.max(1.5, 14 * (hole[3] / data.deepest) ** 8), 0, 7);
      pen.fillStyle = p[2] > 0 ? "#009E73" : "rgba(0,158,115,0.15)"; pen.fill();
    }]);
  });
  const size = Math.max(2.2, Math.min(9, 0.28 * R / Math.sqrt(data.points.length)));
  at.forEach((p, i) => items.push([p[2] + 0.01, () => {
    const color = data.mirrored && i >= data.points.length / 2 ? "#CC79A7" : neighbors[data.degrees[i]] || "#000000";
    pen.beginPath(); pen.arc(R * p[0], -R * p[1], size * (1 + 0.25 * p[2]), 0, 7);
    pen.globalAlpha = p[2] > 0 ? 1 : 0.2;
    if (data.rattlers.includes(i)) { pen.strokeStyle = color; pen.lineWidth = 2; pen.stroke(); }
    else { pen.fillStyle = color; pen.fill(); }
    if (shown.numbers && p[2] > 0) { pen.fillStyle = `rgb(${ink})`; pen.fillText(i, R * p[0] + size + 2, -R * p[1] - size); }
    pen.globalAlpha = 1;
  }]));
  items.sort((a, b) => a[0] - b[0]).forEach(item => item[1]());
}

const box = document.getElementById("layers");
Object.keys(names).filter(key => !/\(0\)/.test(names[key])).forEach(key => {
  const label = document.createElement("label"), tick = document.createElement("input");
  tick.type = "checkbox"; tick.checked = shown[key];
  tick.onchange = () => { shown[key] = tick.checked; draw(); };
  label.append(tick, " " + names[key]); box.append(label);
});
const counts = {};
data.degrees.forEach(k => { counts[k] = (counts[k] || 0) + 1; });
Object.keys(counts).filter(k => k > 0).forEach(k => {
  const line = document.createElement("div"), dot = document.createElement("span");
  dot.className = "swatch"; dot.style.background = neighbors[k] || "#000000";
  line.append(dot, `${counts[k]} points with ${k} neighbors`); box.append(line);
});
if (data.rattlers.length) {
  const line = document.createElement("div");
  line.textContent = `${data.rattlers.length} without a contact (rings)`; box.append(line);
}
canvas.onpointerdown = e => { held = true; spin = 0; canvas.setPointerCapture(e.pointerId); };
canvas.onpointerup = () => { held = false; };
canvas.onpointermove = e => { if (held) { rotate(e.movementX / 200, e.movementY / 200); draw(); } };
canvas.onwheel = e => { e.preventDefault(); zoom *= Math.exp(-e.deltaY / 900); draw(); };
addEventListener("resize", draw);
(function frame() { if (spin) { rotate(spin, 0); draw(); } requestAnimationFrame(frame); })();
draw();
