"use strict";
// One state, drawn by functions of it. Text from the server is set as text, never as markup.
const $ = (id) => document.getElementById(id);
function h(tag, attrs, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attrs || {})) {
    if (key.startsWith("on")) made[key] = value;
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((one) => one !== null && one !== undefined));
  return made;
}
const fixed = (value, places = 1) => (value === null || value === undefined || Number.isNaN(value) ? "-" : value.toFixed(places));
const percent = (part, all) => (all > 0 ? (100 * part / all).toFixed(1) : "-");
const plainName = (key) => key.replace(/#\d+$/, "").replace(/\/1$/, "");

const state = { about: null, tab: "now", frame: null, before: null, recent: [], totals: [], history: null,
  at: 0, playing: false, sort: ["offered", -1], answers: [], plan: {} };

// -- talking to the server -------------------------------------------------------------------------
async function reach(path, body, signal) {
  const headers = {};
  const key = sessionStorage.getItem("interlace-key");
  if (key) headers.Authorization = "Bearer " + key;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method: body === undefined ? "GET" : "POST", headers,
    body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store", signal });
  if (answer.status === 401) {
    const given = prompt("This server asks for an API key:");
    if (given === null) throw new Error("an API key is needed: reload to enter it");
    sessionStorage.setItem("interlace-key", given);
    return reach(path, body, signal);
  }
  if (!answer.ok) throw new Error((await answer.json()).error || answer.statusText);
  return answer;
}
const call = async (path, body) => (await reach(path, body)).json();
// Draws the server's events, and connects again after its restart. An EventSource could send no key.
async function watch(take, draw) {
  for (;;) {
    const stop = new AbortController();
    document.onvisibilitychange = () => document.hidden && stop.abort();
    try {
      if (document.hidden) await new Promise((seen) => document.addEventListener("visibilitychange", seen, { once: true }));
      const reader = (await reach("/page/events", undefined, stop.signal)).body.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = "", part; !(part = await reader.read()).done; ) {
        const events = (text + part.value).split("\n\n");
        text = events.pop();
        events.forEach((event) => take(JSON.parse(event.slice("data: ".length))));
        if (events.length) draw();
      }
      throw new Error("the connection ended");
    } catch (error) { if (!stop.signal.aborted) say("no answer: " + (error.message || error), true); }
    await new Promise((go) => setTimeout(go, 1000));
  }
}
async function ask(question, button) {
  if (button) button.disabled = true;
  say("the command runs");
  try {
    const told = await call("/page/ask", question);
    say("");
    return told;
  } finally {
    if (button) button.disabled = false;
  }
}
function say(text, bad = false) {
  $("state").textContent = text || (state.about && state.about.live ? "live" : "");
  $("state").classList.toggle("bad", bad);
}

// -- frames ----------------------------------------------------------------------------------------
// A model of a frame is an array, as interlace/server/page/frames.py has it.
const M = { name: 0, arrived: 1, inTime: 2, late: 3, refused: 4, failed: 5, p50: 6, p99: 7, waiting: 8, due: 9,
  weights: 10, slo: 11, reasons: 12, why: 13, price: 14 };
function take(frame) {
  if (!frame.models.length && state.frame) frame.models = state.frame.models, frame.modelsAt = state.frame.modelsAt;
  else frame.modelsAt = frame.now_ms;
  if (state.frame && frame.now_ms < state.frame.now_ms) state.recent = [], state.totals = []; // it began anew
  state.recent.push(frame);
  while (state.recent.length > 2 && frame.now_ms - state.recent[1].now_ms > 5000) state.recent.shift();
  state.frame = frame;
  state.before = state.recent[0];
  addTotals(state.totals, state.before, frame);
  while (state.totals.length > 1200) state.totals.shift();
}
function sums(frame) {
  const found = [0, 0, 0];
  for (const one of frame.models) found[0] += one[M.arrived], found[1] += one[M.inTime], found[2] += one[M.late] + one[M.refused] + one[M.failed];
  return found;
}
function addTotals(totals, before, frame) {
  const seconds = (frame.modelsAt - before.modelsAt) / 1000;
  if (seconds <= 0) return;
  const now = sums(frame), then = sums(before);
  totals.push([frame.now_ms / 1000, ...now.map((value, index) => Math.max(0, value - then[index]) / seconds)]);
}

// -- now -------------------------------------------------------------------------------------------
function rowsOf(frame, before) {
  const then = new Map(before.models.map((one) => [one[M.name], one]));
  const seconds = Math.max((frame.modelsAt - before.modelsAt) / 1000, 1e-3);
  const none = [], planned = new Map();
  for (const slot of frame.gpus.flatMap((gpu) => gpu.partitions).flatMap((one) => one.slots)) planned.set(slot[0], (planned.get(slot[0]) || 0) + slot[2]);
  return frame.models.map((one) => {
    const old = then.get(one[M.name]) || none;
    const grown = (index) => Math.max(0, one[index] - (old[index] || 0));
    const inTime = grown(M.inTime), missed = grown(M.late) + grown(M.refused) + grown(M.failed);
    return { model: one, missed: missed / seconds, name: plainName(one[M.name]), slo: one[M.slo], offered: grown(M.arrived) / seconds, good: inTime / seconds,
      part: inTime + missed ? inTime / (inTime + missed) : null, p50: one[M.p50], p99: one[M.p99], queue: one[M.waiting],
      refused: grown(M.refused) / seconds, capacity: frame.headroom === null ? null : planned.get(one[M.name]) || 0,
      price: one[M.price] === null ? null : 100 * one[M.price], state: one[M.why] ? "kept out" : one[M.weights] || "resident" };
  });
}
const PRICE = "GPUs for 100/s more";
const COLUMNS = [["name", "model"], ["slo", "SLO ms"], ["offered", "requests/s"], ["good", "good/s"], ["part", "in SLO %"],
  ["p50", "p50 ms"], ["p99", "p99 ms"], ["queue", "queue"], ["refused", "refused/s"], ["capacity", "planned rows/s"], ["price", PRICE], ["state", "state"]];
const SHOWN = 150;
function drawNow() {
  const { frame, before } = state;
  if (!frame) return;
  const rows = rowsOf(frame, before);
  drawFigures(rows, frame);
  drawGpus(frame, before);
  drawChart();
  drawModels(rows, frame);
}
function drawFigures(rows, frame) {
  const sum = (key) => rows.reduce((all, row) => all + (row[key] || 0), 0);
  const ended = rows.filter((row) => row.part !== null);
  const worst = ended.reduce((low, row) => (low === null || row.part < low.part ? row : low), null);
  const figures = [[fixed(sum("offered")), "requests/s"], [fixed(sum("good")), "goodput/s"],
    [percent(sum("good"), sum("good") + sum("missed")), "% of ended in SLO"],
    [worst ? (100 * worst.part).toFixed(1) : "-", worst ? "% worst: " + worst.name : "% worst model"],
    [sum("queue").toFixed(0), "rows waiting"], [fixed(frame.headroom, 2), "x headroom"],
    [frame.settled ? "settled" : "changing", "plan"]];
  $("figures").replaceChildren(...figures.map(([value, name]) => h("span", {}, h("b", {}, value), name)));
}
function drawGpus(frame, before) {
  const then = new Map(before.gpus.flatMap((gpu) => gpu.partitions).map((one) => [one.id, one]));
  const passed = Math.max(frame.now_ms - before.now_ms, 1);
  const due = new Map(frame.models.map((one) => [one[M.name], one[M.due]]));
  $("gpus").replaceChildren(...frame.gpus.map((gpu) => {
    const used = gpu.partitions.reduce((all, one) => all + one.share_pct, 0);
    const tiles = gpu.partitions.map((one) => {
      const old = then.get(one.id);
      const busy = Math.min(1, Math.max(0, (one.busy_ms - (old ? old.busy_ms : 0)) / passed));
      const names = one.slots.map(([model, batch]) => plainName(model) + " x" + batch);
      const running = one.batches[0];
      const late = one.batches.some((batch) => (due.get(batch.model) || []).some((at) => at < batch.end_ms));
      const title = [one.id, one.share_pct + " %, " + one.state, Math.round(100 * busy) + " % of the time in use", ...names,
        running ? "runs " + running.rows + " of " + plainName(running.model) : "idle"].join("\n");
      const lines = [one.share_pct + " %", ...names.slice(0, 3), ...(running ? ["▶ " + plainName(running.model) + " " + running.rows] : [])];
      return tile("tile" + (late ? " late" : "") + (one.state === "ready" ? "" : " moving"), one.share_pct, used, title, lines, busy);
    });
    return gpuBox(gpu.id + " (" + gpu.kind + ")", used, tiles);
  }));
}
function tile(kind, share, used, title, lines, busy = 0) {
  return h("div", { class: kind, title, style: "width:" + 100 * share / Math.max(used, 100) + "%" },
    h("i", { style: "height:" + Math.round(100 * busy) + "%" }), ...lines.map((line) => h("div", {}, line)));
}
function gpuBox(name, used, tiles) {
  const cut = used > 100 ? ": partitions of " + used + " % overlap" : ": " + used + " % cut out";
  return h("div", { class: "gpu" }, h("h2", {}, name + cut), h("div", { class: "tiles" }, ...tiles));
}
function dots(row, frame) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "dots");
  svg.setAttribute("width", "90");
  svg.setAttribute("height", "12");
  for (const at of row.model[M.due]) {
    const left = row.slo > 0 ? Math.min(1, Math.max(0, (at - frame.now_ms) / row.slo)) : 1;
    const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    dot.setAttribute("cx", String(5 + 80 * left));
    dot.setAttribute("cy", "6");
    dot.setAttribute("r", "2.5");
    dot.setAttribute("fill", left < 0.25 ? "var(--bad)" : "var(--busy)");
    svg.append(dot);
  }
  return svg;
}
function drawModels(rows, frame) {
  const [key, direction] = state.sort;
  const wanted = $("filter").value.trim().toLowerCase();
  const found = rows.filter((row) => row.name.toLowerCase().includes(wanted));
  found.sort((a, b) => {
    const [x, y] = [a[key], b[key]];
    if (x === null || y === null || x === undefined || y === undefined) return (x === null || x === undefined) - (y === null || y === undefined);
    return (x < y ? -1 : x > y ? 1 : a.name < b.name ? -direction : direction) * direction;
  });
  head($("models"), COLUMNS, (name) => { state.sort = [name, state.sort[0] === name ? -state.sort[1] : name === "name" ? 1 : -1]; drawNow(); }, state.sort);
  $("shown").textContent = found.length > SHOWN ? "first " + SHOWN + " of " + found.length + " models" : found.length + " models";
  $("models").tBodies[0].replaceChildren(...found.slice(0, SHOWN).map((row) => {
    const reasons = Object.entries(row.model[M.reasons]).map(([name, count]) => name + ": " + count).join("\n");
    return h("tr", {}, h("td", { title: row.model[M.name] }, row.name), h("td", {}, row.slo ? fixed(row.slo, row.slo < 10 ? 1 : 0) : "-"),
      h("td", {}, fixed(row.offered)), h("td", {}, fixed(row.good)),
      h("td", { class: row.part !== null && row.part < 0.99 ? "bad" : "" }, row.part === null ? "-" : (100 * row.part).toFixed(1)),
      h("td", {}, fixed(row.p50)), h("td", { class: row.p99 !== null && row.slo && row.p99 > row.slo ? "bad" : "" }, fixed(row.p99)),
      h("td", {}, dots(row, frame), " " + row.queue), h("td", { title: reasons }, fixed(row.refused)),
      h("td", {}, fixed(row.capacity)), h("td", {}, fixed(row.price, 3)),
      h("td", { class: row.state === "resident" ? "soft" : "", title: row.model[M.why] }, row.state));
  }));
}
function head(table, columns, onSort, sort) {
  const text = JSON.stringify([columns, sort]);
  if (table.tHead.dataset.drawn === text) return;
  table.tHead.dataset.drawn = text;
  table.tHead.replaceChildren(h("tr", {}, ...columns.map(([key, name]) =>
    h("th", { scope: "col" }, onSort ? h("button", { onclick: () => onSort(key) }, name + (sort && sort[0] === key ? (sort[1] > 0 ? " ▲" : " ▼") : "")) : name))));
}
let chart = null;
function drawChart() {
  const totals = state.history ? state.history.totals : state.totals;
  const data = [0, 1, 2, 3].map((index) => totals.map((one) => one[index]));
  const width = $("chart").clientWidth || 800;
  if (!chart) {
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const series = (label, stroke, dash) => ({ label, stroke: colour(stroke), width: 2, dash, points: { show: false }, value: (u, v) => fixed(v) });
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line") } };
    chart = new uPlot({ width, height: 190, scales: { x: { time: false } }, axes: [{ ...axis, values: (u, at) => at.map((s) => s + " s") }, axis],
      series: [{ label: "time", value: (u, v) => fixed(v) }, series("requests/s", "--soft", [6, 4]), series("in SLO/s", "--good"), series("missed/s", "--bad", [2, 3])] }, data, $("chart"));
  } else {
    if (chart.width !== width) chart.setSize({ width, height: 190 });
    chart.setData(data);
  }
}

// -- the log ---------------------------------------------------------------------------------------
async function readLog(button) {
  const told = await ask({ ask: "history" }, button);
  if (told.status) throw new Error(told.error);
  const history = told.out;
  history.totals = [];
  history.frames.forEach((frame) => { frame.modelsAt = frame.now_ms; });
  history.frames.forEach((frame, index) => { if (index) addTotals(history.totals, history.frames[index - 1], frame); });
  while (history.totals.length > 2 && !history.totals[0][1]) history.totals.shift(); // before the first request
  return history;
}
async function lookBack() {
  if (state.about.live && state.history) {
    Object.assign(state, { history: null, frame: null, recent: [], totals: [], playing: false });
  } else {
    try { state.history = await readLog($("back")); } catch (error) { say(String(error.message || error), true); return; }
    const last = state.history.frames.length - 1;
    if (last < 0) { state.history = null; say("the log is empty", true); return; }
    $("at").max = last;
    showAt(last);
  }
  $("back").textContent = state.history ? "Live" : "Look back";
  for (const id of ["play", "at", "when"]) $(id).hidden = !state.history;
}
function showAt(index) {
  const { frames } = state.history;
  state.at = Math.min(Math.max(index, 0), frames.length - 1);
  state.frame = frames[state.at];
  state.before = frames[Math.max(0, state.at - 1)];
  $("at").value = state.at;
  $("when").textContent = (state.frame.now_ms / 1000).toFixed(1) + " s";
  drawNow();
}
async function saveTrace() {
  try {
    const made = await ask({ ask: "trace", until_s: Math.ceil(state.frame.now_ms / 1000), last_s: 60 }, $("trace"));
    const link = h("a", { href: URL.createObjectURL(new Blob([JSON.stringify(made)])), download: "trace.json" });
    link.click();
    URL.revokeObjectURL(link.href);
  } catch (error) { say(String(error.message || error), true); }
}
const MISSED = [["model", "model"], ["id", "request"], ["arrived", "came at s"], ["took", "took ms"], ["outcome", "outcome"], ["reason", "reason"]];
function drawMissed(history) {
  head($("missed"), MISSED);
  const wanted = $("missedfilter").value.trim().toLowerCase();
  const found = history.listed.filter((one) => (one[1] + " " + one[4] + " " + one[5]).toLowerCase().includes(wanted)).reverse();
  $("missedcount").textContent = history.missed + " missed in the log" + (found.length > 500 ? ", the last 500 of " + found.length + " listed" : "");
  $("missed").tBodies[0].replaceChildren(...found.slice(0, 500).map((one) => {
    const tell = async () => {
      for (const other of $("missed").querySelectorAll(".picked")) other.classList.remove("picked");
      row.classList.add("picked");
      $("story").textContent = "asking the log ...";
      try {
        const told = await ask({ ask: "why", request: one[0] });
        $("story").textContent = "$ " + told.command + "\n\n" + (told.status ? told.error : told.out);
      } catch (error) { $("story").textContent = String(error.message || error); }
    };
    const row = h("tr", { class: "pick", tabindex: "0", onclick: tell, onkeydown: (event) => { if (event.key === "Enter") tell(); } },
      h("td", {}, plainName(one[1])), h("td", {}, String(one[0])), h("td", {}, (one[2] / 1000).toFixed(2)), h("td", {}, fixed(one[3] - one[2])),
      h("td", {}, one[4]), h("td", {}, one[5]));
    return row;
  }));
}

// -- what if ---------------------------------------------------------------------------------------
const SYSTEMS = ["", "interlace", "gpulet", "dstack", "nexus", "clockwork", "e2bird", "nebird", "triton", "temporal", "ideal"];
const WHATIF = [["name", "what if"], ["gpus", "accelerators"], ["requests", "requests"], ["goodput", "good/s"], ["bound", "bound good/s"], ["regret", "regret %"], ["part", "in SLO %"], ["p99", "p99 ms"], ["worst", "worst model in SLO %"]];
function drawWhatIf() {
  const system = h("select", { "aria-label": "system" }, ...SYSTEMS.map((name) => h("option", { value: name }, name || "same system")));
  const gpus = h("select", { "aria-label": "accelerators" }, ...["", "-2", "-1", "+1", "+2"].map((value) => h("option", { value }, value ? value + " accelerators" : "same accelerators")));
  const rates = h("input", { type: "number", step: "0.05", min: "0.05", max: "20", value: "1", "aria-label": "rates times", title: "rates times" });
  const slos = h("input", { type: "number", step: "0.05", min: "0.05", max: "20", value: "1", "aria-label": "SLOs times", title: "SLOs times" });
  const button = h("button", {}, "What if?");
  $("changes").replaceChildren(system, gpus, "rates x", rates, "SLOs x", slos, button);
  $("changes").onsubmit = async (event) => {
    event.preventDefault();
    const parts = [system.value && "system=" + system.value, gpus.value && "gpus=" + gpus.value,
      rates.value !== "1" && "rates=" + rates.value, slos.value !== "1" && "slos=" + slos.value].filter(Boolean);
    try {
      const told = await ask({ ask: "what-if", changes: [parts.join(",") || "rates=1"] }, button);
      $("whatifsaid").textContent = "$ " + told.command + "\n" + (told.status ? told.error : "");
      if (!told.status) {
        state.answers = state.answers.length ? [...state.answers, ...told.out.slice(1)] : told.out;
        drawAnswers();
      }
    } catch (error) { $("whatifsaid").textContent = String(error.message || error); say("", false); }
  };
  drawAnswers();
}
function drawAnswers() {
  head($("answers"), WHATIF);
  $("answers").tBodies[0].replaceChildren(...state.answers.map((one) => h("tr", {}, h("td", {}, one.name), h("td", {}, String(one.gpus)), h("td", {}, String(one.requests)),
    h("td", {}, fixed(one.goodput_rps)), h("td", {}, fixed(one.bound_rps)), h("td", {}, one.regret === null ? "-" : (100 * one.regret).toFixed(1)),
    h("td", {}, (100 * one.in_time).toFixed(2)), h("td", {}, fixed(one.p99_ms)),
    h("td", {}, plainName(one.worst_model) + " " + (100 * one.worst_in_time).toFixed(2)))));
}

// -- how many GPUs ---------------------------------------------------------------------------------
function drawPlan() {
  head($("asked"), [["model", "model"], ["rate", "requests/s"], ["slo", "SLO ms"]]);
  if (state.frame && state.about.live) {
    for (const row of rowsOf(state.frame, state.before)) state.plan[row.name] ||= [Math.max(1, Math.round(row.offered)), row.slo || 100];
  } else if (state.about.models) state.plan = { ...state.about.models, ...state.plan };
  const cell = (name, index) => h("input", { type: "number", min: "0", step: "any", value: String(state.plan[name][index]), "aria-label": (index ? "SLO of " : "rate of ") + name,
    oninput: (event) => { state.plan[name][index] = Number(event.target.value); } });
  $("asked").tBodies[0].replaceChildren(...Object.keys(state.plan).slice(0, 500).map((name) =>
    h("tr", {}, h("td", {}, name), h("td", {}, cell(name, 0)), h("td", {}, cell(name, 1)))));
  const kinds = h("select", { "aria-label": "kind" }, h("option", { value: "" }, state.about.live ? "accelerators like these" : "the scenario's kind"),
    ...(state.about.kinds || []).map((kind) => h("option", { value: kind }, kind)));
  const button = h("button", {}, "How many?");
  const models = () => Object.fromEntries(Object.entries(state.plan).filter(([, asked]) => asked[0] > 0));
  const compare = (state.about.kinds || []).length > 1 ? h("button", { type: "button", onclick: () => compareKinds(models(), compare) }, "Compare kinds") : null;
  $("planform").replaceChildren(...[kinds, button, compare].filter(Boolean));
  $("planform").onsubmit = async (event) => {
    event.preventDefault();
    try {
      showPlan(await askPlan({ models: models(), gpu: kinds.value || undefined }, button, showPlan));
    } catch (error) { $("plansaid").textContent = String(error.message || error); say("", false); }
  };
}
async function askPlan(question, button, show = () => {}) {
  const told = await ask({ ask: "plan", ...question }, button);
  if (!told.draft) return told;
  show({ out: told.draft, error: "The plan is being tried with random requests." });
  return ask({ ask: "tried", number: told.number }, button);
}
async function compareKinds(models, button) {
  const body = $("kinds").tBodies[0];
  head($("kinds"), [["kind", "kind of GPU"], ["gpus", "fewest"], ["bound", "no scheduler needs fewer than"], ["cost", "an hour"], ["kept", "every promise kept"]]);
  $("kinds").hidden = false;
  body.replaceChildren();
  for (const kind of state.about.kinds) {
    let cells;
    try {
      const told = await askPlan({ models, gpu: kind }, button), found = told.out;
      cells = typeof found === "object" ? [String(found.gpus), String(found.lower_bound.gpus), fixed(found.cost_per_hour, 2), found.kept ? "yes" : "no"] : [told.error];
    } catch (error) { cells = [String(error.message || error)]; }
    body.append(h("tr", {}, h("td", {}, kind), ...cells.map((cell) => h("td", {}, cell))));
  }
  say("");
}
function showPlan(told) {
  const found = typeof told.out === "object" ? told.out : null;
  $("fewest").textContent = !found ? "" : found.gpus + " " + found.gpu + (found.gap === 1 ? ", the fewest there can be" : ", no scheduler needs fewer than " + found.lower_bound.gpus) +
    (found.cost_per_hour ? ", " + fixed(found.cost_per_hour, 2) + " an hour" : "") + (found.kept === null ? ", being tried" : found.kept ? ", every promise kept when it was tried" : ", a promise is not kept");
  $("plansaid").textContent = (told.command ? "$ " + told.command + "\n" : "") + told.error + (found ? "" : told.out) + (told.scenario ? "\n# scenario.toml\n" + told.scenario : "");
  drawPlanned(found);
}
const PROMISED = [["model", "model"], ["p99", "p99 ms"], ["attainment", "in SLO %"], ["price", PRICE]];
function drawPlanned(found) {
  const parts = found ? found.partitions : [];
  const gpus = [...new Set(parts.map((one) => one.gpu))];
  $("planned").replaceChildren(...gpus.slice(0, 64).map((gpu) => {
    const own = parts.filter((one) => one.gpu === gpu);
    const used = own.reduce((all, one) => all + one.share_pct, 0);
    return gpuBox(gpu + " (" + found.gpu + ")", used, own.map((one) => {
      const names = one.slots.map((slot) => plainName(slot.model) + " x" + slot.batch + ", " + fixed(slot.rows_per_s) + "/s");
      return tile("tile", one.share_pct, used, [one.id, one.share_pct + " %", ...names].join("\n"), [one.share_pct + " %", ...names]);
    }));
  }));
  const models = found ? Object.entries(found.models) : [];
  $("promised").hidden = !models.length;
  head($("promised"), PROMISED);
  $("promised").tBodies[0].replaceChildren(...models.map(([name, one]) => h("tr", {}, h("td", {}, name), h("td", {}, fixed(one.p99_ms)),
    h("td", { class: one.attainment !== null && one.attainment < one.attainment_wanted ? "bad" : "" }, one.attainment === null ? "-" : (100 * one.attainment).toFixed(2)),
    h("td", {}, one.price_gpus_per_rps === null ? "-" : (100 * one.price_gpus_per_rps).toFixed(3)))));
}

// -- the fleet -------------------------------------------------------------------------------------
const PLACED = [["node", "node"], ["model", "model"], ["rate", "requests/s"], ["queue", "queued rows"], ["wait", "answer ms"], ["slo", "SLO ms"]];
function nodeSays(node) {
  if (node.problem) return node.problem;
  if (!node.state) return "not heard of";
  const failures = Object.entries(node.state.failures).map(([model, why]) => model + ": " + why);
  return failures.join("; ") || (node.drained ? "drains" : node.state.settled ? "serves" : "changes");
}
function drawFleet(now, before, seconds) {
  const names = Object.keys(now.nodes).sort();
  const unserved = Object.entries(now.unserved_rows_per_s).map(([model, rate]) => "not served of " + model + ": " + fixed(rate) + " rows/s: " + (now.reasons[model] || ""));
  $("fleetsaid").textContent = [names.length + (names.length === 1 ? " node" : " nodes"), now.term ? "term " + now.term : "another controller commands",
    ...(now.planning ? ["another plan is being made"] : []), ...(now.failure ? ["no newer plan: " + now.failure] : []), ...unserved].join(", ");
  $("nodes").replaceChildren(...names.flatMap((name) => {
    const node = now.nodes[name], parts = node.assigned ? node.assigned.plan.partitions : [], says = nodeSays(node);
    const gpus = [...new Set(parts.map((one) => one.gpu))].sort();
    const kinds = Object.entries(node.accelerators).map(([kind, count]) => count + " " + kind).join(", ");
    return (gpus.length ? gpus : [""]).map((gpu) => {
      const own = parts.filter((one) => one.gpu === gpu), used = own.reduce((all, one) => all + one.share_pct, 0);
      return gpuBox([name, gpu].filter(Boolean).join(" ") + " (" + kinds + "), " + says, used, own.map((one) => {
        const models = one.slots.map((slot) => plainName(slot.model) + " x" + slot.batch);
        return tile("tile" + (says === "serves" ? "" : " moving"), one.share_pct, used, [one.id, one.share_pct + " %", ...models].join("\n"), [one.share_pct + " %", ...models]);
      }));
    });
  }));
  head($("placed"), PLACED);
  $("placed").tBodies[0].replaceChildren(...names.flatMap((name) => {
    const state = now.nodes[name].state, was = before && before.nodes[name] && before.nodes[name].state;
    return Object.entries(state ? state.models : {}).sort().map(([model, one]) => {
      const old = was && was.began === state.began ? was.models[model] : undefined;
      return h("tr", {}, h("td", {}, name), h("td", {}, model), h("td", {}, old ? fixed((one.arrived - old.arrived) / seconds) : "-"),
        h("td", {}, String(one.waiting_rows)), h("td", { class: one.wait_ms > one.slo_ms ? "bad" : "" }, fixed(one.wait_ms)), h("td", {}, fixed(one.slo_ms)));
    });
  }).slice(0, 500));
}
function watchFleet() {
  let before = null, then = 0;
  watch((now) => {
    const at = performance.now();
    drawFleet(now, before, Math.max(0.1, (at - then) / 1000));
    [before, then] = [now, at];
  }, () => say("live"));
}

// -- tabs and the loop -----------------------------------------------------------------------------
function drawTabs() {
  const names = [["fleet", "Fleet", state.about.fleet], ["now", state.about.live ? "Now" : "Log", state.about.live || state.about.log], ["why", "Why", true], ["whatif", "What if", true], ["plan", "How many GPUs?", state.about.plan]];
  const shown = names.filter(([id, , there]) => there && (state.about.live || state.about.log || id === "plan" || id === "fleet"));
  if (!shown.some(([id]) => id === state.tab)) state.tab = shown[0][0];
  $("tabs").replaceChildren(...shown.map(([id, name]) => h("button", { role: "tab", id: "tab-" + id, "aria-selected": String(id === state.tab), onclick: () => open(id) }, name)));
}
async function open(tab) {
  state.tab = tab;
  location.hash = tab;
  drawTabs();
  for (const id of ["fleet", "now", "why", "whatif", "plan"]) $(id).hidden = id !== tab;
  if (tab === "plan") {
    drawPlan();
    if (state.about.answer) showPlan(state.about.answer);
    state.about.answer = null;
  }
  if (tab === "whatif") drawWhatIf();
  if (tab === "now") drawNow();
  if ((tab === "why" || tab === "whatif") && !state.about.log) {
    $("story").textContent = $("whatifsaid").textContent = "No log is kept: start with interlace serve MODELS_DIR --log events.log to ask why and what if.";
  } else if (tab === "why" && !state.missed) await reread();
}
async function reread() {
  try {
    state.missed = state.about.live ? await readLog($("reread")) : state.history;
    drawMissed(state.missed);
  } catch (error) { $("story").textContent = String(error.message || error); say("", false); }
}
const watchServer = () => watch((frame) => state.history || take(frame), () => {
  say(state.history ? "looking back" : "live");
  if (state.tab === "now" && !state.history) drawNow();
});
async function begin() {
  state.about = await call("/page/about");
  $("title").textContent = state.about.title;
  document.title = state.about.title;
  state.tab = location.hash.slice(1) || "now";
  drawTabs();
  $("filter").oninput = drawNow;
  $("missedfilter").oninput = () => state.missed && drawMissed(state.missed);
  $("reread").onclick = reread;
  $("at").oninput = () => showAt(Number($("at").value));
  $("play").onclick = () => { state.playing = !state.playing; $("play").textContent = state.playing ? "\u23F8" : "\u25B6"; };
  $("back").onclick = lookBack;
  $("trace").onclick = saveTrace;
  setInterval(() => { if (state.playing && state.history) showAt((state.at + 1) % state.history.frames.length); }, 250);
  $("scrub").hidden = !state.about.log;
  for (const id of ["play", "at", "when"]) $(id).hidden = true;
  $("back").hidden = !state.about.live;
  if (!state.about.live && state.about.log) await lookBack();
  say("");
  await open(state.tab);
  if (state.about.live) watchServer();
  if (state.about.fleet) watchFleet();
}
begin().catch((error) => say(String(error.message || error), true));
