// The page of `prdctl serve`. Text of workers (names of jobs and hosts, reasons) reaches the document as text alone:
// Node.textContent, never as markup.
"use strict";

const by = (id) => document.getElementById(id);
const KINDS = {
  c: ["computing", "computing"], w: ["waiting", "waiting"], r: ["reducing", "reducing, sending or copying"],
  b: ["beside", "reducing beside the computing"], p: ["there", "there: it has finished, pauses, goes over to the next engine, or says nothing of what it does"],
};
const state = { runs: [], run: null, summary: null, line: null, groups: [], from: 0, to: 30, live: true, drag: null, row: null };

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = String(text);
  if (kind) made.className = kind;
  return made;
}
function fill(parent, children) { parent.replaceChildren(...children); }
function set(node, text) { if (node.textContent !== text) node.textContent = text; }
// The children are those that `list` gives, by key. What stays is not touched, so that it keeps the focus.
function keep(parent, list, make, show) {
  const known = parent.byKey || new Map(), now = new Map();
  for (const entry of list) now.set(String(entry.key), known.get(String(entry.key)) || make(entry));
  for (const [key, node] of known) if (!now.has(key)) node.remove();
  let at = parent.firstChild;
  for (const entry of list) {
    const node = now.get(String(entry.key));
    if (node === at) at = at.nextSibling; else parent.insertBefore(node, at);
    show(node, entry);
  }
  parent.byKey = now;
}
// One of the children is a stop of the Tab key, the arrows go on from there.
function roving(parent, at) {
  const children = [...parent.children];
  const stop = children.includes(document.activeElement) ? document.activeElement : at || children[0];
  for (const child of children) child.tabIndex = child === stop ? 0 : -1;
}
function rove(parent, event) {
  const children = [...parent.children], at = children.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: children.length - 1 }[event.key];
  if (at < 0 || to === undefined) return;
  event.preventDefault(); event.stopPropagation();
  if (!children[to]) return;
  children[to].focus();
  roving(parent);
}

function seconds(s) {
  if (s === null || s === undefined || !Number.isFinite(s)) return "–";
  const a = Math.abs(s);
  if (a === 0) return "0 s";
  if (a < 1e-3) return (s * 1e6).toFixed(0) + " µs";
  if (a < 1) return (s * 1e3).toFixed(a < 0.01 ? 1 : 0) + " ms";
  if (a < 100) return s.toFixed(a < 10 ? 1 : 0) + " s";
  if (a < 6000) return Math.floor(s / 60) + " min " + Math.floor(s % 60) + " s";
  return (s / 3600).toFixed(1) + " h";
}
const clock = (s) => (s < 0 ? "-" : "") + Math.floor(Math.abs(s) / 60) + ":" + String((Math.abs(s) % 60).toFixed(1)).padStart(4, "0");
const plural = (n, one, many) => n + " " + (n === 1 ? one : many || one + "s");
// Of any size, to three digits.
function figure(v) {
  const a = Math.abs(v);
  return a === 0 ? "0" : a >= 1e6 || a < 1e-3 ? v.toExponential(2) : a >= 1000 ? v.toFixed(0) : v.toPrecision(3);
}
function ranks(list, all) {
  const shown = list.slice(0, 12).join(", ");
  return shown + ((all || list.length) > 12 ? ", … (" + (all || list.length) + ")" : "");
}

async function ask(path) {
  const answer = await fetch("api/" + path, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error("HTTP " + answer.status);
  return answer.json();
}

// ---- drawing ----

function prepare(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  if (height && canvas.style.height !== height + "px") canvas.style.height = height + "px";
  const tall = height || canvas.clientHeight;
  const w = Math.round(width * ratio), h = Math.round(tall * ratio);
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, tall);
  g.font = "11px system-ui, 'DejaVu Sans', sans-serif";
  return [g, width, tall];
}
let colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["computing", "waiting", "reducing", "beside", "there", "ink", "soft", "line", "accent", "card", "bad"]) {
    colours[name] = style.getPropertyValue("--" + name).trim();
  }
}
const LEFT = 74;  // for the labels of rows

function niceStep(span, most) {
  const rough = span / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  for (const times of [1, 2, 5, 10]) if (times * power >= rough) return times * power;
  return 10 * power;
}

// Engine by engine: "p-reduce → hop", of many the last ones.
const inTurn = (names) => (names.length > 4 ? "… → " : "") + names.slice(-4).join(" → ");
function switchText(by_) {
  return (by_.from === by_.to ? by_.to + " with other options" : by_.from + " → " + by_.to) + " at " + clock(by_.at_s) + (by_.by ? ", by " + by_.by : "") +
    (by_.reason ? ": " + by_.reason : "") + ". Pause " + (by_.pause_s > 0 ? (by_.pause_s * 1e3).toFixed(0) + " ms" : "–") + ", run " + by_.run;
}
// A line at each switch of the job, with the engine that follows beside it where there is room.
function drawSwitches(g, x, left, right, tall, y) {
  let free = left;
  g.textAlign = "left";
  for (const by_ of state.summary.switches) {
    const at = Math.round(x(by_.at_s));
    if (at < left || at > right) continue;
    g.fillStyle = colours.accent; g.fillRect(at - 1, 0, 2, tall);
    const text = "→ " + by_.to, wide = g.measureText(text).width + 8;
    if (at < free || at + wide > right) continue;
    g.fillText(text, at + 4, y);
    free = at + wide;
  }
}

// ---- over the whole job's time ----

// The parts of the series that are over.
function partsOver(values) { return state.summary.over || values.length < 2 ? values : values.slice(0, -1); }
// What all overviews have: x of a time, the base below them, operators' acts and switches, and the window. The lowest one has
// the times below it.
function overview(canvas, height, lowest, draw) {
  const [g, width, tall] = prepare(canvas, height + (lowest ? 14 : 0));
  const s = state.summary;
  if (!s || !s.series) return;
  const end = Math.max(s.now_s, s.series.width_s), base = height;
  const x = (t) => LEFT + (width - LEFT) * t / end;
  draw(g, x, base);
  g.fillStyle = colours.soft;
  if (lowest) {
    g.textAlign = "left"; g.fillText("0:00", LEFT, tall - 2);
    g.textAlign = "right"; g.fillText(clock(end), width - 2, tall - 2);
  }
  g.fillStyle = colours.bad;
  for (const act of s.acts) if (!switchOf(act)) g.fillRect(Math.round(x(act.at_s)), 0, 1, base);
  drawSwitches(g, x, LEFT, width, base, 10);
  const a = Math.max(x(state.from), LEFT), b = Math.max(a + 2, Math.min(x(state.to), width));
  g.fillStyle = colours.accent; g.globalAlpha = 0.16; g.fillRect(a, 0, b - a, base); g.globalAlpha = 1;
  g.strokeStyle = colours.accent; g.strokeRect(a + 0.5, 0.5, b - a - 1, base - 1);
}
function drawOverviews() {
  const losses = state.summary && state.summary.series && state.summary.series.loss;
  by("loss").hidden = !losses;
  overview(by("steps"), 42, !losses, (g, x, base) => {
    const w = state.summary.series.width_s, rates = partsOver(state.summary.series.steps).map((n) => n / w);
    const most = Math.max(1e-9, ...rates);
    g.fillStyle = colours.computing; g.globalAlpha = 0.55;
    g.beginPath(); g.moveTo(x(0), base);
    rates.forEach((rate, i) => { const y = base - (base - 6) * rate / most; g.lineTo(x(i * w), y); g.lineTo(x((i + 1) * w), y); });
    g.lineTo(x(rates.length * w), base); g.fill(); g.globalAlpha = 1;
    g.fillStyle = colours.soft; g.textAlign = "right";
    g.fillText("steps/s", LEFT - 8, base - 3); g.fillText(most >= 100 ? most.toFixed(0) : most.toPrecision(2), LEFT - 8, 13);
  });
  if (losses) overview(by("loss"), 64, true, (g, x, base) => drawLoss(g, x, base, losses));
}
// Logarithmic where that shows more.
function drawLoss(g, x, base, losses) {
  const w = state.summary.series.width_s, end = state.summary.now_s;
  const told = losses.map((loss, i) => [x(Math.min((i + 0.5) * w, end)), loss]).filter(([, loss]) => loss !== null);
  const low = Math.min(...told.map(([, loss]) => loss)), high = Math.max(...told.map(([, loss]) => loss));
  const logarithmic = low > 0 && high > 30 * low, scale = logarithmic ? Math.log : (v) => v;
  const y = (v) => (high > low ? base - 4 - (base - 10) * (scale(v) - scale(low)) / (scale(high) - scale(low)) : base / 2);
  g.strokeStyle = g.fillStyle = colours.reducing; g.lineWidth = 1.6;
  g.beginPath();
  told.forEach(([at, loss], i) => (i ? g.lineTo(at, y(loss)) : g.moveTo(at, y(loss))));
  g.stroke(); g.lineWidth = 1;
  if (told.length < 40) for (const [at, loss] of told) { g.beginPath(); g.arc(at, y(loss), 2.2, 0, 7); g.fill(); }
  g.fillStyle = colours.soft; g.textAlign = "right";
  g.fillText(figure(high), LEFT - 8, 13); g.fillText(logarithmic ? "loss, log" : "loss", LEFT - 8, base / 2 + 5);
  if (high > low) g.fillText(figure(low), LEFT - 8, base);
}
// Steps/s or loss at the pointer.
function tellOverview(canvas, event) {
  const s = state.summary, box = canvas.getBoundingClientRect();
  if (!s || !s.series) return;
  const end = Math.max(s.now_s, s.series.width_s), w = s.series.width_s;
  const t = end * (event.clientX - box.left - LEFT) / (box.width - LEFT);
  const loss = canvas.id === "loss", values = loss ? s.series.loss : s.series.steps;
  let i = Math.floor(t / w);
  while (loss && i > 0 && values[i] === null) --i;  // the last one told
  const value = t < 0 || !values || i >= values.length ? null : values[i];
  by("tip").hidden = value === null;
  if (value === null) return;
  set(by("tip"), (loss ? "loss " + figure(value) : figure(value / w) + " steps/s") + " at " + clock(loss ? (i + 0.5) * w : t));
  placeTip(event.clientX, event.clientY);
}

function drawLanes() {
  const line = state.line;
  const rows = line ? line.rows : [], switches = state.summary && state.summary.switches ? state.summary.switches.length : 0;
  const each = rows.length <= 16 ? 22 : rows.length <= 40 ? 14 : rows.length <= 64 ? 9 : Math.max(2, Math.min(4, Math.floor(600 / rows.length)));
  const [g, width] = prepare(by("lanes"), Math.max(60, rows.length * each) + (switches ? 34 : 20));
  if (!line) return;
  const plot = width - LEFT, span = state.to - state.from, tall = rows.length * each;
  const x = (t) => LEFT + plot * (t - state.from) / span;
  const step = niceStep(span, 9);
  g.strokeStyle = colours.line; g.fillStyle = colours.soft; g.textAlign = "center";
  for (let t = Math.ceil(state.from / step) * step; t <= state.to; t += step) {
    g.beginPath(); g.moveTo(Math.round(x(t)) + 0.5, 0); g.lineTo(Math.round(x(t)) + 0.5, tall); g.stroke();
    if (x(t) < width - 20) g.fillText(clock(t), Math.max(x(t), LEFT + 12), tall + 14);
  }
  const every = Math.max(1, Math.ceil(13 / each));
  rows.forEach((row, i) => {
    const y = i * each, pad = each > 8 ? 2 : each > 3 ? 1 : 0, high = each - pad;
    if (i % every === 0) {
      g.fillStyle = colours.soft; g.textAlign = "right";
      g.fillText(row.first === row.last ? "rank " + row.first : row.first + "–" + row.last, LEFT - 8, Math.max(9, y + Math.min(each, 22) / 2 + 4));
    }
    if (row.cells) {
      const wide = (line.to_s - line.from_s) / row.cells.length;
      for (let k = 0; k < row.cells.length;) {
        let end = k + 1;
        while (end < row.cells.length && row.cells[end] === row.cells[k]) ++end;
        const kind = KINDS[row.cells[k]];
        if (kind) {
          const a = Math.max(LEFT, x(line.from_s + k * wide)), b = Math.min(width, x(line.from_s + end * wide));
          g.fillStyle = colours[kind[0]];
          if (b > a) g.fillRect(a, y, Math.max(0.5, b - a), high);
        }
        k = end;
      }
      return;
    }
    for (const [from, to] of row.there) {
      const a = Math.max(LEFT, x(from)), b = Math.min(width, x(to));
      g.fillStyle = colours.there;
      if (b > a) g.fillRect(a, y, b - a, high);
    }
    for (const did of row.spans) {
      const a = Math.max(LEFT, x(did[0])), b = Math.min(width, x(did[1]));
      if (b <= a) continue;
      g.fillStyle = colours[KINDS[did[2]][0]];
      const low = did[2] === "b";
      const thin = Math.max(2, Math.round(high / 4));
      g.fillRect(a, low ? y + high - thin : y, Math.max(0.6, b - a - (b - a > 5 ? 0.6 : 0)), low ? thin : high);
    }
  });
  if (switches) drawSwitches(g, x, LEFT, width, tall + 18, tall + 29);
  // The group that the pointer is at: its members, joined.
  if (state.group) {
    g.strokeStyle = colours.ink; g.lineWidth = 1.4;
    const at = Math.max(LEFT, Math.min(width - 1, x(state.group.formed_s)));
    const ys = rows.map((row, i) => [row, i]).filter(([row]) => state.group.members.some((m) => m >= row.first && m <= row.last)).map(([, i]) => i * each + each / 2);
    if (ys.length) {
      g.beginPath(); g.moveTo(at, Math.min(...ys)); g.lineTo(at, Math.max(...ys)); g.stroke();
      g.fillStyle = colours.ink;
      for (const y of ys) { g.beginPath(); g.arc(at, y, Math.min(3, each / 2), 0, 7); g.fill(); }
    }
    g.lineWidth = 1;
  }
  state.geometry = { each, x, width, plot, span };
  if (state.row !== null && rows.length) {
    state.row = Math.min(state.row, rows.length - 1);
    const at = Math.round(x((state.from + state.to) / 2));
    g.strokeStyle = colours.accent;
    g.strokeRect(LEFT + 0.5, state.row * each + 0.5, plot - 1, each - 1);
    g.fillStyle = colours.accent; g.fillRect(at, 0, 1, tall);
    const box = by("lanes").getBoundingClientRect();
    tell(rows[state.row], (state.from + state.to) / 2, box.left + at, box.top + (state.row + 1) * each);
  }
}

function drawGraph() {
  const s = state.summary;
  const graph = s && s.graph;
  const canvas = by("graph");
  const n = graph ? graph.fields.length : 0;
  const [g, width, height] = prepare(canvas, 260);
  const titles = { groups: "Who averages with whom", neighbours: "Who sends updates to whom", store: "Who averages with whom", schedule: "Who averages with whom" };
  set(by("graph-title"), titles[graph ? graph.what : "groups"]);
  let note = "Groups that two ranks shared, " + (s && s.switches && s.switches.length ? "under " + s.run.engine : "over the whole run") + ": a thicker line is more of them.";
  if (!n && graph && graph.what === "store") note = "No groups: the parameters are in shards, and each worker reads all of them.";
  else if (!n && graph && graph.what === "schedule") note = "The workers follow a schedule that they draw themselves; their groups are not recorded.";
  else if (!n) note = "No group has ended yet.";
  else if (graph.what === "neighbours") note = "The graph in force: lines lead between neighbours.";
  else if (n > 24) note = "Each field is a pair" + (graph.ranks_per_field > 1 ? " of blocks of " + graph.ranks_per_field + " ranks" : "") + "; the stronger, the more groups they shared.";
  set(by("graph-note"), note);
  if (!n) return;
  const most = Math.max(...graph.fields.flat(), 1e-9);
  if (n <= 24 && graph.ranks_per_field === 1) {
    const cx = width / 2, cy = height / 2, r = Math.min(width, height) / 2 - 20;
    const at = (i) => [cx + r * Math.sin(2 * Math.PI * i / n), cy - r * Math.cos(2 * Math.PI * i / n)];
    g.strokeStyle = colours.reducing;
    for (let i = 0; i < n; ++i) for (let j = 0; j < i; ++j) {
      const weight = Math.max(graph.fields[i][j], graph.fields[j][i]) / most;
      if (weight <= 0) continue;
      g.globalAlpha = 0.15 + 0.75 * weight; g.lineWidth = 0.5 + 3 * weight;
      g.beginPath(); g.moveTo(...at(i)); g.lineTo(...at(j)); g.stroke();
    }
    g.globalAlpha = 1; g.lineWidth = 2; g.strokeStyle = colours.bad; g.setLineDash([4, 3]);
    for (const link of s.links) { if (link.a < n && link.b < n) { g.beginPath(); g.moveTo(...at(link.a)); g.lineTo(...at(link.b)); g.stroke(); } }
    g.setLineDash([]); g.lineWidth = 1; g.textAlign = "center";
    for (let i = 0; i < n; ++i) {
      const [a, b] = at(i);
      g.fillStyle = colours.card; g.strokeStyle = colours.reducing;
      g.beginPath(); g.arc(a, b, 10, 0, 7); g.fill(); g.stroke();
      g.fillStyle = colours.ink; g.fillText(i, a, b + 4);
    }
    return;
  }
  const side = Math.min(width - 40, height - 24), field = side / n, left = (width - side) / 2;
  for (let i = 0; i < n; ++i) for (let j = 0; j < n; ++j) {
    const weight = graph.fields[i][j] / most;
    if (weight <= 0) continue;
    g.globalAlpha = 0.1 + 0.9 * weight; g.fillStyle = colours.reducing;
    g.fillRect(left + j * field, i * field, Math.max(0.5, field - 0.3), Math.max(0.5, field - 0.3));
  }
  g.globalAlpha = 1; g.strokeStyle = colours.line; g.strokeRect(left + 0.5, 0.5, side - 1, side - 1);
  g.fillStyle = colours.soft; g.textAlign = "left"; g.fillText("rank 0", left, side + 14);
  g.textAlign = "right"; g.fillText("rank " + Math.min(n * graph.ranks_per_field - 1, Math.max(...s.pace.workers.map((w) => w.rank))), left + side, side + 14);
}

// ---- text ----

function showRuns(told) {
  state.runs = told.runs;
  set(by("daemon"), told.daemon ? "prd " + told.daemon.version : "no daemon");
  keep(by("runs"), told.runs.map((run) => ({ key: run.first, run })), () => { const b = element("button"); b.append(element("b"), element("small")); return b; }, (button, { run }) => {
    const [name, rest] = button.children, word = run.paused ? "paused" : run.state;
    button.onclick = () => choose(run.first);
    button.setAttribute("aria-current", String(run.first === state.run));
    const is = word + " " + run.job;
    if (name.dataset.is !== is) { name.replaceChildren(element("span", "", "dot " + word.split(" ")[0]), document.createTextNode(run.job)); name.dataset.is = is; }
    const engines = run.turns.map((turn) => turn.engine);
    set(rest, "run " + run.run + " · " + inTurn(engines) + " · " + word);
    button.title = engines.length > 4 ? engines.join(" → ") : "";
  });
  roving(by("runs"), document.querySelector("#runs [aria-current=true]"));
  if (!told.runs.length || told.runs.some((run) => run.first === state.run)) return;
  // None is chosen; or the first run of the one that was is kept no longer.
  const same = state.run !== null && state.summary && told.runs.find((run) => run.job === state.summary.run.job);
  choose((same || told.runs.find((run) => !run.ended) || told.runs[0]).first);
}

function showHead(s) {
  const run = s.run;
  document.title = run.job + " – prd";
  set(by("title"), run.job);
  const here = s.workers ? s.workers.filter((worker) => worker.here).length : 0;
  const slow = s.pace && s.pace.workers.filter((worker) => worker.cost_s > 0).sort((a, b) => b.cost_s - a.cost_s)[0];
  const before = s.switches && s.switches.length ? ", after " + inTurn(s.switches.map((by_) => by_.from)) : "";
  let text = "Run " + run.run + " under " + run.engine + before + (s.over ? ", over after " + seconds(s.now_s) + ": " + (run.end || run.state) + ". " : ", for " + seconds(s.now_s) + ". ");
  if (!s.over) text += plural(here, "worker is", "workers are") + " here" + (s.expected > here ? ", " + s.expected + " at the start" : "") + ". ";
  if (slow && slow.cost_s > 0.01 * s.pace.waited_s) text += "The others have waited " + seconds(slow.cost_s) + " for rank " + slow.rank + (slow.factor > 1.2 ? ", whose steps take " + slow.factor.toFixed(1) + " times as long as the median" : "") + ".";
  if (!s.whole) text += " " + plural(s.read, "record") + " of " + s.records + " read.";
  set(by("sentence"), text);
  by("paused").hidden = !s.paused;
  if (s.paused) set(by("paused"), "Paused by " + s.paused.by + " for " + seconds(s.paused.for_s) + (s.paused.reason ? ": " + s.paused.reason : "") + ". prdctl resume " + run.job + " lets it go on.");
  // Of the last 8 parts that are over; what is not told of has no steps.
  const w = s.series ? s.series.width_s : 1, n = Math.floor(s.now_s / w), parts = Math.min(8, n);
  const lately = s.over ? s.steps / Math.max(s.now_s, 1e-9) : s.series && n ? s.series.steps.slice(n - parts, n).reduce((a, b) => a + b, 0) / (w * parts) : 0;
  const busy = s.pace ? s.pace.workers.reduce((a, b) => a + b.computed_s + b.waited_s + b.reduced_s, 0) : 0;
  const waited = s.pace ? s.pace.workers.reduce((a, b) => a + b.waited_s, 0) : 0;
  const figures = [["steps", String(s.steps)], [s.over ? "steps/s, mean" : "steps/s", lately >= 100 ? lately.toFixed(0) : lately.toFixed(1)], ["waiting", busy ? Math.round(100 * waited / busy) + " %" : "–"], ["workers", s.over ? String(s.expected || 0) : here + " of " + s.expected]];
  const losses = s.series && s.series.loss ? s.series.loss.filter((loss) => loss !== null) : [];
  if (losses.length) figures.splice(2, 0, [s.over ? "loss, last" : "loss", figure(losses[losses.length - 1])]);
  if (s.links && s.links.length) figures.push(["broken links", String(s.links.length)]);
  fill(by("figures"), figures.map(([name, value]) => { const d = element("div"); d.append(element("dt", name), element("dd", value, name === "broken links" ? "bad" : "")); return d; }));
}

function meter(share, colour, text) {
  const box = element("div", null, "meter"), bar = element("i");
  bar.style.width = Math.max(0, Math.min(100, 100 * share)) + "%"; bar.style.background = "var(--" + colour + ")";
  box.append(bar, element("span", text));
  return box;
}

function showSlow(s) {
  const workers = [...s.pace.workers].sort((a, b) => b.cost_s - a.cost_s || b.factor - a.factor).slice(0, 12);
  const longest = Math.max(1e-9, ...workers.map((w) => w.step_s)), dearest = Math.max(1e-9, ...workers.map((w) => w.cost_s));
  set(by("slow-note"), "The others' waiting is " + seconds(s.pace.waited_s) + " in all; the median step takes " + seconds(s.pace.median_step_s) + "." + (s.pace.workers.length > workers.length ? " The " + workers.length + " dearest of " + s.pace.workers.length + "." : ""));
  const grid = element("div", null, "pace");
  grid.append(element("em", ""), element("em", "a step of its own"), element("em", "the others' waiting for it"));
  for (const worker of workers) {
    grid.append(element("span", "rank " + worker.rank), meter(worker.step_s / longest, "computing", seconds(worker.step_s) + (worker.factor >= 1.15 ? "  (" + worker.factor.toFixed(1) + "×)" : "")), meter(worker.cost_s / dearest, "waiting", seconds(worker.cost_s)));
  }
  fill(by("slow"), [grid]);
}

// The switch that an operator's act has led to; none as long as that is to come.
const switchOf = (act) => act.what.startsWith("switch") && state.summary.switches.find((by_) => by_.asked_s === act.at_s);
function showLinks(s) {
  const parts = s.links.map((link) => element("p", "Ranks " + link.a + " and " + link.b + " have not reached each other for " + seconds(link.broken_s) + ": " + link.reason, "bad"));
  for (const refused of s.refused) parts.push(element("p", "Refused " + seconds(refused.ago_s) + " ago: rank " + refused.rank + " on " + refused.host + ": " + refused.reason));
  fill(by("links"), parts.length ? parts : [element("p", "No link is known to be broken, and nobody was refused.", "note")]);
  by("switched").hidden = !s.switches.length;
  fill(by("switches"), s.switches.slice(-20).map((by_) => element("p", switchText(by_))));
  const acts = s.acts.filter((act) => !switchOf(act));
  by("operators").hidden = !acts.length;
  fill(by("acts"), acts.map((act) => element("p", clock(act.at_s) + "  " + act.what + " by " + act.by + (act.reason ? ": " + act.reason : ""))));
  const chips = element("div", null, "chips");
  for (const [word, count] of Object.entries(s.states)) chips.append(element("span", count + " " + word));
  fill(by("now"), [chips]);
}

// rows: [key, cells]
function table(node, heads, rows) {
  if (!node.tHead) {
    const head = element("tr");
    for (const [text, kind] of heads) head.append(element("th", text, kind));
    node.createTHead().append(head);
    node.createTBody();
  }
  keep(node.tBodies[0], rows.map(([key, cells]) => ({ key, cells })), () => {
    const row = element("tr");
    for (const [, kind] of heads) row.append(element("td", "", kind));
    return row;
  }, (row, { cells }) => cells.forEach((cell, i) => set(row.children[i], cell === null || cell === undefined ? "" : String(cell))));
}

// What a worker's library holds beside the program's tensors.
function memory(w) {
  const mib = (bytes) => Math.ceil(bytes / 1048576) + " MiB";
  return [w.host_bytes ? mib(w.host_bytes) : "", w.device_bytes ? mib(w.device_bytes) + " on its device" : ""].filter((text) => text).join(", ");
}

function showWorkers(s) {
  const order = (w) => (w.state === "waiting" ? 0 : w.here ? 1 : 2);
  const shown = [...s.workers].sort((a, b) => order(a) - order(b) || a.rank - b.rank).slice(0, 200);
  table(by("workers"), [["rank", "n"], ["state"], ["iteration", "n"], ["heard", "n"], ["memory", "n"], ["host"], ["pid", "n"], ["why"]],
    shown.map((w) => [w.rank, [w.rank, w.state + (w.detail ? " (" + w.detail + ")" : "") + (w.share ? ", " + w.share + " samples a step" : ""), w.iteration, w.heard_s === null ? "–" : seconds(w.heard_s) + " ago", memory(w), w.host, w.pid, w.why]]));
}

function showGroups() {
  set(by("groups-note"), state.groups.length ? "Formed until " + clock(state.to) + ", the newest first. Point at one, or go to it with the arrow keys, to see it above." : "None in this run until then.");
  const number = (g) => (state.summary.switches.length ? g.group + " of run " + g.run : g.group);
  table(by("groups"), [["group", "n"], ["formed", "n"], ["state"], ["members"], ["waited, all", "n"], ["last to come", "n"], ["reduced", "n"], ["reason"]],
    state.groups.map((g) => [g.key, [number(g), clock(g.formed_s), (g.kind === "train" ? "" : g.kind + ", ") + g.state, ranks(g.members, g.all), seconds(g.waited_s), g.last >= 0 ? "rank " + g.last : "–", g.reduce_s ? seconds(g.reduce_s) : "–", g.failure || g.reason]]));
  const body = by("groups").tBodies[0];
  [...body.children].forEach((row, i) => {
    row.onpointerenter = row.onfocus = () => { state.group = state.groups[i]; drawLanes(); };
    row.onpointerleave = row.onblur = () => { state.group = null; drawLanes(); };
  });
  roving(body);
}

// ---- the window ----

function clampWindow() {
  const end = state.summary && state.summary.now_s ? state.summary.now_s : 30;
  let span = Math.max(0.02, Math.min(state.to - state.from, Math.max(end, 5) * 1.05));
  if (state.live) { state.to = end; state.from = end - span; }
  if (state.to > end * 1.02 + 1) { state.to = end * 1.02 + 1; state.from = state.to - span; }
  if (state.from < 0) { state.from = 0; }
  if (state.to - state.from < span) state.to = state.from + span;
  by("live").setAttribute("aria-pressed", String(state.live));
}
function move(from, to, live) {
  state.from = from; state.to = to; state.live = Boolean(live);
  clampWindow(); drawOverviews(); drawLanes(); soon();
}
const shift = (share) => move(state.from + share * (state.to - state.from), state.to + share * (state.to - state.from), false);
function zoom(times, at) {
  const point = at === undefined ? (state.live ? state.to : (state.from + state.to) / 2) : at;
  move(point - (point - state.from) * times, point + (state.to - point) * times, state.live && at === undefined);
}
function whole() { const end = state.summary ? state.summary.now_s : 30; move(0, end, state.summary && !state.summary.over); }
function choose(run) {
  if (run === state.run) return;
  Object.assign(state, { run, summary: null, line: null, groups: [], group: null, from: 0, to: 30, live: true, fresh: true, row: null });
  by("tip").hidden = true;
  for (const button of by("runs").children) button.setAttribute("aria-current", "false");
  tick();
}

// ---- keeping up ----

let asking = false, timer = 0;
function soon() { clearTimeout(timer); timer = setTimeout(tick, 60); }
async function tick() {
  clearTimeout(timer);
  if (asking) { timer = setTimeout(tick, 100); return; }
  asking = true;
  let wait = 1000;
  try {
    const told = await ask("runs");
    showRuns(told);
    let wrong = told.error;
    if (state.run !== null) {
      const run = state.run, s = await ask("run?run=" + run);
      if (run === state.run) {
        state.summary = s;
        wrong = s.error || wrong;
        if (s.series) {
          if (state.fresh && s.whole) {
            state.fresh = false; state.live = !s.over;
            // So much of the present that single steps are seen.
            const span = Math.min(300, Math.max(3, (s.workers.length > 64 ? 100 : 50) * s.pace.median_step_s));
            state.to = s.now_s; state.from = s.over ? 0 : Math.max(0, s.now_s - span);
          }
          clampWindow();
          const width = by("lanes").clientWidth - LEFT;
          const window_ = "&to=" + state.to.toFixed(6);
          const [line, groups] = await Promise.all([
            ask("timeline?run=" + run + "&from=" + state.from.toFixed(6) + window_ + "&width=" + Math.max(100, Math.round(width))),
            ask("groups?run=" + run + window_)]);
          if (run === state.run) {
            state.line = line; state.groups = groups.groups;
            show();
          }
        }
        if (s.over && s.whole) wait = 5000;
        else if (!s.whole) wait = 30;
      }
    }
    by("banner").hidden = !wrong;
    set(by("banner"), wrong || "");
  } catch (error) {
    by("banner").hidden = false;
    set(by("banner"), "prdctl serve does not answer (" + error.message + "); what is shown is as it was.");
  }
  asking = false;
  if (document.hidden) wait = 15000;
  timer = setTimeout(tick, wait);
}
function show() {
  const s = state.summary;
  showHead(s); drawOverviews(); drawLanes(); drawGraph(); showSlow(s); showLinks(s); showGroups(); showWorkers(s);
}

// ---- hands ----

function placeTip(left, top) {
  by("tip").style.left = Math.min(left + 14, window.innerWidth - 390) + "px"; by("tip").style.top = top + 16 + "px";
}
// What the row's workers do at that time, beside the point.
function tell(row, t, left, top) {
  const tip = by("tip"), line = state.line;
  let text = (row.first === row.last ? "rank " + row.first : "ranks " + row.first + " to " + row.last) + " at " + clock(t);
  let kind = null, did = null, group = null;
  if (row.cells) kind = row.cells[Math.floor((t - line.from_s) / (line.to_s - line.from_s) * row.cells.length)];
  else { did = row.spans.find((s) => s[0] <= t && t < s[1] && s[2] !== "b") || row.spans.find((s) => s[0] <= t && t < s[1]); kind = did ? did[2] : row.there.some((s) => s[0] <= t && t < s[1]) ? "p" : null; }
  text += "\n" + (KINDS[kind] ? (row.cells ? "mostly " : "") + KINDS[kind][1] : "not there") + (did ? " for " + seconds(did[1] - did[0]) : "");
  const stay = kind || row.cells ? null : row.there.filter((s) => s[1] <= t).pop();
  if (stay && stay[2]) text += " since " + clock(stay[1]) + "\n" + stay[2];
  if (did && did[3]) {
    group = state.groups.find((g) => g.key === did[3]) || null;
    if (!state.summary.switches.length) text += "\ngroup " + did[3];
    if (group) {
      if (state.summary.switches.length) text += "\ngroup " + group.group + " of run " + group.run;
      text += " of ranks " + ranks(group.members, group.all);
      if (did[2] === "w" && group.last >= 0) text += group.last === row.first ? "\nit was the last to come" : "\nthe last to come was rank " + group.last;
    }
  } else if (did && did[2] === "w" && state.summary && did[1] >= line.now_s - 0.05) {
    const worker = state.summary.workers.find((w) => w.rank === row.first);
    if (worker) text += "\n" + worker.why;
  }
  set(tip, text); tip.hidden = false;
  placeTip(left, top);
  return group;
}
// The switch whose line is at most so many pixels away.
const switchAt = (px, x) => state.summary && state.summary.switches && state.summary.switches.find((by_) => Math.abs(x(by_.at_s) - px) <= 4);
function tellSwitch(by_, left, top) {
  set(by("tip"), switchText(by_)); by("tip").hidden = false;
  placeTip(left, top);
}
// To the next switch after the middle of the window, or to the first one.
function nextSwitch() {
  const all = state.summary && state.summary.switches ? state.summary.switches : [];
  if (!all.length) return;
  const half = (state.to - state.from) / 2, middle = state.from + half;
  const to = all.find((by_) => by_.at_s > middle + 1e-3 * half) || all[0];
  move(Math.max(0, to.at_s - half), Math.max(2 * half, to.at_s + half), false);
  const box = by("lanes").getBoundingClientRect();
  tellSwitch(to, box.left + state.geometry.x(to.at_s), box.top);
}
function tipAt(event) {
  const geometry = state.geometry, box = by("lanes").getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
  const row = state.line && geometry && state.line.rows[Math.floor(py / geometry.each)];
  state.row = null;
  const marked = geometry && px >= LEFT && switchAt(px, geometry.x);
  if (marked) { tellSwitch(marked, event.clientX, event.clientY); return; }
  if (!row || px < LEFT) { by("tip").hidden = true; return; }
  state.group = tell(row, state.from + geometry.span * (px - LEFT) / geometry.plot, event.clientX, event.clientY);
  drawLanes();
}
function noRow() { state.row = null; by("tip").hidden = true; drawLanes(); }
function chooseRow(event) {
  const by_ = { ArrowDown: 1, ArrowUp: -1 }[event.key], rows = state.line ? state.line.rows.length : 0;
  if (event.key === "Escape") return noRow();
  if (!by_ || !rows) return;
  event.preventDefault();
  state.row = state.row === null ? (by_ > 0 ? 0 : rows - 1) : Math.max(0, Math.min(rows - 1, state.row + by_));
  drawLanes();
}

function theme(next) {
  document.documentElement.dataset.theme = next;
  try { localStorage.setItem("theme", next); } catch { /* it is forgotten then */ }
  readColours();
  if (state.summary && state.summary.series) { drawOverviews(); drawLanes(); drawGraph(); }
}

function begin() {
  let known = null;
  try { known = localStorage.getItem("theme"); } catch { /* as the system has it */ }
  theme(known || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  fill(by("legend"), ["c", "w", "r", "b"].map((key) => { const li = element("li"), i = element("i"); i.style.background = "var(--" + KINDS[key][0] + ")"; li.append(i, document.createTextNode(KINDS[key][1])); return li; }));
  by("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  by("help-open").onclick = () => by("help").showModal();
  by("back").onclick = () => shift(-0.5);
  by("forth").onclick = () => shift(0.5);
  by("in").onclick = () => zoom(0.5);
  by("out").onclick = () => zoom(2);
  by("all").onclick = whole;
  by("live").onclick = () => { state.live = true; move(state.from, state.to, true); };
  const lanes = by("lanes");
  lanes.onpointermove = (event) => { if (!state.drag) tipAt(event); else { const g = state.geometry; const by_s = (state.drag.x - event.clientX) * g.span / g.plot; move(state.drag.from + by_s, state.drag.to + by_s, false); } };
  lanes.onpointerdown = (event) => { state.drag = { x: event.clientX, from: state.from, to: state.to }; lanes.setPointerCapture(event.pointerId); by("tip").hidden = true; };
  lanes.onpointerup = () => { state.drag = null; };
  lanes.onpointerleave = () => { by("tip").hidden = true; if (state.group) { state.group = null; drawLanes(); } };
  lanes.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, state.from + state.geometry.span * (event.clientX - lanes.getBoundingClientRect().left - LEFT) / state.geometry.plot);
  }, { passive: false });
  for (const canvas of [by("steps"), by("loss")]) {
    const jump = (event) => {
      const box = canvas.getBoundingClientRect(), end = state.summary ? state.summary.now_s : 1, half = (state.to - state.from) / 2;
      const t = end * (event.clientX - box.left - LEFT) / (box.width - LEFT);
      move(t - half, t + half, false);
    };
    canvas.onpointerdown = (event) => { canvas.setPointerCapture(event.pointerId); state.jump = true; by("tip").hidden = true; jump(event); };
    canvas.onpointermove = (event) => { if (state.jump) jump(event); else tellOverview(canvas, event); };
    canvas.onpointerup = () => { state.jump = false; };
    canvas.onpointerleave = () => { by("tip").hidden = true; };
  }
  lanes.onkeydown = chooseRow;
  lanes.onblur = noRow;
  by("runs").onkeydown = (event) => rove(by("runs"), event);
  by("groups").onkeydown = (event) => rove(by("groups").tBodies[0], event);
  const next = (by_) => { const i = state.runs.findIndex((run) => run.first === state.run); const run = state.runs[i + by_]; if (run) choose(run.first); };
  // Of the whole page, and in the list that "Keys" shows.
  const keys = [
    [["ArrowLeft", "ArrowRight"], "back and forth in time", (key) => shift(key === "ArrowLeft" ? -0.25 : 0.25)],
    [["+", "-"], "closer, further away", (key) => zoom(key === "+" ? 0.5 : 2)],
    [["A"], "the whole run", whole],
    [["L"], "follow the present", () => by("live").click()],
    [["J", "K"], "next job, previous job", (key) => next(key === "J" ? 1 : -1)],
    [["S"], "to the next switch of the engine", nextSwitch],
    [["T"], "light or dark", () => by("theme").click()],
    [["?"], "these keys", () => by("help").showModal()],
    [["Tab"], "from one part of the page to the next", null],
    [["ArrowUp", "ArrowDown"], "in the list of jobs, among the workers' lines, in the list of groups: from one to the next", null],
    [["Esc"], "close", null],
  ];
  const names = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" };
  fill(by("keys"), keys.map(([those, what]) => {
    const row = element("tr"), cell = element("td");
    for (const key of those) cell.append(element("kbd", names[key] || key), " ");
    row.append(cell, element("td", what));
    return row;
  }));
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || by("help").open) return;
    const pressed = event.key === "=" ? "+" : event.key.length === 1 ? event.key.toUpperCase() : event.key;
    const found = keys.find(([those, , act]) => act && those.includes(pressed));
    if (found) { event.preventDefault(); found[2](pressed); }
  });
  addEventListener("resize", () => { if (state.summary && state.summary.series) show(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) soon(); });
  tick();
}
begin();
