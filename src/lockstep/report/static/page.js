"use strict";
(function () {
  let data = JSON.parse(document.getElementById("data").textContent);
  const REFRESH = 3000;
  const SERIES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8a6d3b", "#7f6aa8"];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const charts = new Map();
  let logSteps = true;

  // ---- small helpers ---------------------------------------------------------------------------------------------
  // Text always goes in as text: names of files and systems come from others.
  function element(tag, options = {}, ...children) {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(options)) {
      if (key === "style") Object.assign(node.style, value);
      else if (key === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
      else node.setAttribute(key, value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  }
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (number) => {
    const base = SERIES[number % SERIES.length];
    return dark.matches && base === "#0072B2" ? "#4aa8e8" : base;
  };
  function number(value, digits = 4) {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(digits - 2).replace(/\.?0*e\+?/, "e");
    return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits)));
  }
  const percent = (share) => (share === null || share === undefined ? "–" : (100 * share).toFixed(1) + " %");
  function bytes(size) {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let unit = 0;
    while (size >= 1000 && unit < units.length - 1) { size /= 1000; unit += 1; }
    return number(size, 3) + " " + units[unit];
  }

  // ---- plots -----------------------------------------------------------------------------------------------------
  // As many digits as it takes to tell one tick from the next: total energies differ in the sixth.
  function labels(ticks) {
    const shown = ticks.filter((value) => value !== null && value !== undefined);
    const text = (value, digits) => (digits <= 3 ? number(value, 3) : String(Number(value.toPrecision(digits))));
    let digits = 3;
    while (digits < 15 && new Set(shown.map((value) => text(value, digits))).size < shown.length) digits += 1;
    return ticks.map((value) => (value === null || value === undefined ? "" : text(value, digits)));
  }
  function axis(label, extra = {}) {
    const font = "12px " + getComputedStyle(document.body).fontFamily;
    return {
      label, font, labelFont: font, labelSize: 20, gap: 4, size: extra.side === undefined ? 34 : 58,
      stroke: () => css("--soft"), grid: { stroke: () => css("--grid"), width: 1 },
      ticks: { stroke: () => css("--line"), width: 1, size: 5 },
      values: (u, ticks) => labels(ticks), ...extra,
    };
  }
  function options(spec, width, height) {
    return {
      width, height, padding: [8, 12, 0, 0],
      scales: { x: { time: false, distr: spec.logX ? 3 : 1, range: spec.rangeX || ((u, low, high) => (low < high ? [low, high] : [low / 2, high * 2 || 1])) }, y: { distr: spec.logY ? 3 : 1, range: spec.rangeY } },
      axes: [axis(spec.x, spec.axisX), axis(spec.y, { side: 3, ...spec.axisY })],
      cursor: { drag: { x: true, y: true, uni: 24 }, points: { size: 7 } },
      legend: { live: true },
      series: [{ label: spec.nameX || spec.x, value: (u, v) => number(v, 5) }, ...spec.series],
      hooks: {
        setSelect: [(u) => { u.zoomed = u.select.width > 0 || u.select.height > 0; }],
      },
    };
  }
  // Draws a plot into `place`, or gives one that is there already its new data, leaving a zoomed view alone.
  function plot(id, place, spec) {
    const height = (width) => (spec.square ? Math.min(width, 420) : 300);
    const old = charts.get(id);
    const signature = JSON.stringify([spec.logX, spec.logY, spec.series.map((s) => s.label), dark.matches]);
    if (old && old.signature === signature && old.place === place) {
      old.plot.setData(spec.data, !old.plot.zoomed);
      return;
    }
    if (old) { old.plot.destroy(); old.observer.disconnect(); }
    const width = Math.max(200, place.clientWidth);
    const made = new uPlot(options(spec, width, height(width)), spec.data, place);
    // Before the plot itself hears of it, and asks for the ranges of all its data.
    made.over.addEventListener("dblclick", () => { made.zoomed = false; }, { capture: true });
    const observer = new ResizeObserver(() => {
      const now = Math.max(200, place.clientWidth);
      if (now !== made.width) made.setSize({ width: now, height: height(now) });
    });
    observer.observe(place);
    charts.set(id, { plot: made, signature, place, observer });
  }
  function line(label, stroke, extra = {}) {
    return { label, stroke, width: 1.6, spanGaps: true, points: { show: false }, value: (u, v) => number(v), ...extra };
  }
  const positive = (values) => values.map((value) => (value > 0 ? value : null));

  // ---- the parts of the page: each gives its sections, or nothing --------------------------------------------------
  // A part is made once; what changes in a live view goes through `update`.
  const holders = new Map();
  function figure(parent, id, title, note) {
    let holder = holders.get(id);
    if (!holder) {
      const place = element("div", { class: "plot", id });
      const caption = element("span", { class: "soft" });
      parent.append(element("figure", {}, element("figcaption", {}, element("h3", {}, title), caption), place));
      holder = { place, caption };
      holders.set(id, holder);
    }
    holder.caption.textContent = note || "";
    return holder.place;
  }
  function section(id, title, ...before) {
    let part = holders.get(id);
    if (!part) {
      part = element("section", { id });
      part.append(element("h2", {}, title), ...before);
      document.getElementById("main").append(part);
      holders.set(id, part);
    }
    return part;
  }
  function grid(id, parent, kind = "") {
    if (!holders.has(id)) {
      const node = element("div", { class: "grid " + kind });
      parent.append(node);
      holders.set(id, node);
    }
    return holders.get(id);
  }
  // Tables and texts are simply made anew.
  function replaced(id, parent, node) {
    const old = holders.get(id);
    if (old) old.replaceWith(node); else parent.append(node);
    holders.set(id, node);
    return node;
  }
  function table(head, rows, classes = []) {
    const wide = rows.length ? rows[0].map((cell) => cell instanceof Node) : [];
    const row = (cells, tag) => cells.map((cell, at) => element(tag, wide[at] ? { class: "wide" } : {}, cell));
    return element("div", { class: "panel" }, element("table", {},
      element("thead", {}, element("tr", {}, ...row(head, "th"))),
      element("tbody", {}, ...rows.map((cells, at) => element("tr", { class: classes[at] || "" }, ...row(cells, "td"))))));
  }
  function stack(parts, whole) {
    return element("div", { class: "stack" }, ...parts.map((part) => element("i", {
      title: `${part.name}: ${part.text}`, style: { width: (100 * part.value) / whole + "%", background: part.colour },
    })));
  }
  const keys = (parts) => element("div", { class: "keys" }, ...parts.map((part) =>
    element("span", {}, element("i", { style: { background: part.colour } }), part.name)));

  function cards() {
    const made = data.cards.map((card) => element("div", { class: "card" },
      element("div", { class: "label" }, card.label), element("div", { class: "value" }, card.value, card.unit ? element("small", {}, " " + card.unit) : null),
      element("div", { class: "note" }, card.note),
      card.progress === null ? null
        : element("div", { class: "bar" }, element("i", { style: { width: 100 * card.progress + "%" } }))));
    replaced("cards", document.getElementById("main"), element("div", { class: "cards", id: "cards" }, ...made));
  }

  function scaleButtons() {
    const make = (label, wanted) => element("button", {
      type: "button", "aria-pressed": String(logSteps === wanted),
      on: { click: () => { logSteps = wanted; learning(); } },
    }, label);
    return element("div", { class: "tools" },
      element("span", { class: "soft" }, "Drag to zoom, double-click to see all; click a name to hide its line."),
      element("span", { role: "group", "aria-label": "axis of steps" }, make("log steps", true), make("linear steps", false)));
  }
  function learning() {
    if (!data.curves) return;
    const part = section("learning", "Learning curves");
    replaced("scale-buttons", part, scaleButtons());
    const place = grid("learning-grid", part);
    const { step, panels, lr } = data.curves;
    for (const panel of panels) {
      const series = panel.series.map((one, at) => line(one.name, colour(at), one.name.startsWith("training") ? { dash: [5, 3], width: 1.2 } : { width: 2 }));
      plot("curve-" + panel.title, figure(place, "curve-" + panel.title.replace(/\W+/g, "-"), panel.title, panel.unit), {
        x: "Training step", y: panel.unit, logX: logSteps, logY: true, series,
        data: [step, ...panel.series.map((one) => positive(one.values))],
      });
    }
    if (lr) plot("curve-lr", figure(place, "curve-lr", "Learning rate", ""), {
      x: "Training step", y: "", logX: logSteps, logY: true, series: [line("learning rate", colour(2))], data: [step, positive(lr)],
    });
  }

  function budget() {
    if (!data.budget) return;
    const { step, phases, ranks, samples_per_s } = data.budget;
    const place = grid("time-grid", section("time", "Where the time goes"));
    const shown = phases.filter((phase) => phase.share.some((share) => share > 0.0005));
    // Sums from the bottom up, drawn from the top down: each area covers the lower part of the one before.
    const sums = [];
    shown.forEach((phase, at) => sums.push(phase.share.map((share, row) => share + (at ? sums[at - 1][row] : 0))));
    const order = shown.map((phase, at) => at).reverse();
    const stepped = uPlot.paths.stepped({ align: -1 });
    plot("budget", figure(place, "budget", "Step budget", "share of each phase, mean over the ranks"), {
      x: "Training step", y: "", rangeY: (u, low, high) => (u.zoomed ? [low, high] : [0, 1]),
      axisY: { values: (u, ticks) => ticks.map((t) => Math.round(100 * t) + " %") },
      series: order.map((at) => ({
        label: shown[at].name, stroke: shown[at].colour, fill: shown[at].colour, width: 0, points: { show: false },
        paths: step.length > 1 ? stepped : uPlot.paths.linear(),
        value: (u, v, s, row) => percent(row === null || row === undefined ? null : shown[at].share[row]),
      })),
      data: [step, ...order.map((at) => sums[at])],
    });
    const lines = ranks.map((rank, at) => line(rank.name, colour(at), { width: 1.4 }));
    const several = ranks.length > 1;
    plot("speed", figure(place, "speed", "Throughput", several ? "of each rank" : ""), {
      x: "Training step", y: "samples per second", series: several ? lines : [line("all", colour(0))],
      rangeY: (u, low, high) => (u.zoomed ? [low, high] : [0, high * 1.06 || 1]),
      data: [step, ...(several ? ranks.map((rank) => rank.values) : [samples_per_s])],
    });
    if (several) plot("speed-all", figure(place, "speed-all", "Throughput of all ranks", ""), {
      x: "Training step", y: "samples per second", series: [line("all ranks", colour(2), { width: 2 })],
      rangeY: (u, low, high) => (u.zoomed ? [low, high] : [0, high * 1.06 || 1]),
      data: [step, samples_per_s],
    });
  }

  function profile() {
    if (!data.profile) return;
    const part = section("communication", "Communication");
    const { ranks, routines, job, backend } = data.profile;
    const kinds = [
      { name: "own work", colour: colour(0) }, { name: "transfer", colour: colour(1) }, { name: "waiting for others", colour: colour(4) },
    ];
    const rows = ranks.map((rank) => {
      const values = [rank.elapsed - rank.communication, rank.communication - rank.wait, rank.wait];
      return [
        "rank " + rank.rank, rank.host,
        stack(kinds.map((kind, at) => ({ ...kind, value: values[at], text: number(values[at], 3) + " s" })), rank.elapsed),
        number(rank.communication, 3) + " s", number(rank.wait, 3) + " s", number(rank.elapsed, 3) + " s",
        number(rank.user + rank.system, 3) + " s", number(rank.memory, 3) + " MB",
      ];
    });
    const made = table(["rank", "host", "from start to end", "communication", "of it waiting", "elapsed", "processor", "memory"], rows);
    made.append(element("div", { class: "soft" }, `job ${job}, ${backend}`), keys(kinds));
    replaced("profile-ranks", part, made);
    const all = routines.flatMap((routine) => routine.sizes.map((size) => ({ name: routine.name, ...size })));
    const most = Math.max(...all.map((size) => size.seconds), 1e-12);
    replaced("profile-sizes", part, table(
      ["routine", "message size", "calls", "bytes in all", "time", "of it waiting", "time of all ranks"],
      all.map((size) => [
        size.name, bytes(size.bytes / Math.max(1, size.calls)), number(size.calls, 6), bytes(size.bytes),
        number(size.seconds, 3) + " s", number(size.wait, 3) + " s",
        stack([
          { ...kinds[1], value: size.seconds - size.wait, text: number(size.seconds - size.wait, 3) + " s" },
          { ...kinds[2], value: size.wait, text: number(size.wait, 3) + " s" },
        ], most),
      ])));
  }

  function parity() {
    if (!data.parity || !data.parity.length) return;
    const place = grid("parity-grid", section("parity", "Predictions against labels"), "three");
    data.parity.forEach((panel, at) => {
      const all = [...panel.label, ...panel.predicted];
      const low = Math.min(...all), high = Math.max(...all), margin = 0.04 * (high - low) || 1;
      const range = (u, from, to) => (u.zoomed ? [from, to] : [low - margin, high + margin]);
      const shown = panel.label.length < panel.count ? `, ${panel.label.length.toLocaleString("en")} shown` : "";
      const note = `${panel.name}: RMSE ${number(panel.rmse, 3)}, MAE ${number(panel.mae, 3)} ${panel.unit}; ${panel.count.toLocaleString("en")} numbers${shown}`;
      plot("parity-" + at, figure(place, "parity-" + at, panel.title, note), {
        x: `Label (${panel.unit})`, nameX: "label", y: `Prediction (${panel.unit})`, square: true, rangeX: range, rangeY: range,
        series: [
          line("ideal", css("--soft"), { width: 1 }),
          { label: "prediction", stroke: colour(0), paths: () => null, value: (u, v) => number(v, 5),
            points: { show: true, size: 4, width: 0, fill: colour(0) + "99", stroke: colour(0) + "99" } },
        ],
        data: [panel.label, panel.label, panel.predicted],
      });
    });
  }

  function scaling() {
    const test = data.scaling;
    if (!test) return;
    const part = section("scaling", test.mode === "strong" ? "Strong scaling" : "Weak scaling");
    const place = grid("scaling-grid", part);
    const predicted = test.prediction ? test.prediction.rows : [];
    const workers = [...new Set([...test.rows, ...predicted].map((row) => row.workers))].sort((a, b) => a - b);
    const at = (rows, key) => workers.map((count) => { const row = rows.find((one) => one.workers === count); return row ? row[key] : null; });
    const fitting = test.rows.filter((row) => !row.oversubscribed), crowded = test.rows.filter((row) => row.oversubscribed);
    const dots = (label, paint, filled, dash) => line(label, paint, {
      dash, width: dash ? 1.4 : 0, points: { show: true, size: 9, width: 2, stroke: paint, fill: filled ? paint : css("--card") },
      paths: dash ? undefined : () => null,
    });
    const kinds = [
      [dots("measured", colour(0), true), fitting], ...(crowded.length ? [[dots("measured, oversubscribed", "#9aa4b2", true), crowded]] : []),
      ...(predicted.length ? [[dots("predicted, not measured", colour(1), false, [6, 4]), predicted]] : []),
    ];
    const alone = test.rows[0].samples_per_s / test.rows[0].workers;
    const labels = { values: (u, ticks) => ticks.map((t) => (t === null ? "" : String(t))), splits: () => workers, filter: (u, ticks) => ticks };
    const base = { x: "Workers", nameX: "workers", logX: true, axisX: labels, rangeX: (u, low, high) => (u.zoomed ? [low, high] : [workers[0] / 1.3, workers[workers.length - 1] * 1.3]) };
    plot("throughput", figure(place, "throughput", "Throughput", "samples per second of all workers"), {
      ...base, y: "samples per second", logY: true,
      series: [line("ideal", css("--soft"), { dash: [2, 3], width: 1.2 }), ...kinds.map(([one]) => one)],
      data: [workers, workers.map((count) => alone * count), ...kinds.map(([, rows]) => at(rows, "samples_per_s"))],
    });
    plot("efficiency", figure(place, "efficiency", "Efficiency", "against the fewest workers"), {
      ...base, y: "", axisY: { values: (u, ticks) => ticks.map((t) => Math.round(100 * t) + " %") },
      rangeY: (u, low, high) => (u.zoomed ? [low, high] : [0, Math.max(1.1, high * 1.05)]),
      series: kinds.map(([one]) => ({ ...one, value: (u, v) => percent(v) })), data: [workers, ...kinds.map(([, rows]) => at(rows, "efficiency"))],
    });
    scalingTables(part, test, predicted);
  }
  function scalingTables(part, test, predicted) {
    const cells = (row) => [
      String(row.workers) + (row.oversubscribed ? " †" : "") + (row.per_frame > 1 ? ` (${row.per_frame} per frame)` : ""),
      row.seconds_per_100_samples.toFixed(4), (row.samples_per_s / row.workers).toFixed(2) + (row.workers > 1 ? " × " + row.workers : ""),
      row.speed_up.toFixed(2), percent(row.efficiency), (1000 * row.seconds_per_step).toFixed(2),
    ];
    const made = table(["Num of workers", "Seconds every 100 samples", "Samples per second", "Speed up", "Efficiency", "Step (ms)"],
      [...test.rows.map(cells), ...predicted.map(cells)], [...test.rows.map(() => ""), ...predicted.map(() => "predicted")]);
    const notes = [];
    if (test.rows.some((row) => row.oversubscribed)) notes.push("† more workers than cores or GPUs: left out of the prediction.");
    if (test.prediction) {
      const fit = test.prediction;
      notes.push(`In italics, not measured: ${fit.formula}, fitted to ${fit.fitted_to.join(", ")} workers; error on these ${fit.errors.map((e) => (e < 0 ? "−" : "+") + percent(Math.abs(e))).join(", ")}.`);
      notes.push(Object.entries(fit.seconds).map(([name, value]) => `${name} ${number(1000 * value, 3)} ms`).join(", ") + ".");
    }
    made.append(element("p", { class: "soft" }, notes.join(" ")));
    replaced("scaling-table", part, made);
    const longest = Math.max(...test.rows.map((row) => row.seconds_per_step));
    const steps = table(["Num of workers", "where the time of a step goes", "Step (ms)"], test.rows.map((row) => [
      String(row.workers),
      stack(data.phases.map((phase) => ({ ...phase, value: row.seconds_per_step * (row.budget[phase.name] || 0), text: percent(row.budget[phase.name]) })), longest),
      (1000 * row.seconds_per_step).toFixed(2),
    ]));
    for (const cell of steps.querySelectorAll("td.wide")) cell.style.width = "80%";
    steps.append(keys(data.phases.filter((phase) => test.rows.some((row) => row.budget[phase.name] > 0.0005))));
    replaced("scaling-steps", part, steps);
    replaced("scaling-input", part, element("p", { class: "soft" },
      `Input ${test.input}, launcher ${test.launcher}, ${test.threads || "shared"} thread(s) a worker, median of ${test.steps} steps after ${test.warmup} of warm-up, on ${test.host}, ${test.date}.`));
  }

  function systems() {
    if (!data.systems || !data.systems.length) return;
    const part = section("systems", "Data");
    const head = ["system", "atoms", "batch size", "batches", "probability", "periodic"];
    for (const one of data.systems) {
      const rows = one.rows.map((row) => (row.length < 6 ? row : [...row.slice(0, 5), row[5] === "T" ? "yes" : "no"]));
      const made = table([`${one.title} systems`, ...(one.rows.some((row) => row.length > 1) ? head.slice(1) : [])], rows);
      if (one.note) made.append(element("p", { class: "soft" }, one.note));
      replaced("systems-" + one.title, part, made);
    }
  }

  function details() {
    const part = section("details", "Details");
    const fold = (id, title, content, open = false) => {
      const old = holders.get(id);
      const node = element("details", { class: "panel" }, element("summary", {}, title), content);
      node.open = old ? old.open : open;
      replaced(id, part, node);
    };
    const lines = (values) => element("pre", {}, values.join("\n"));
    if (data.warnings && data.warnings.length) fold("fold-warnings", `Warnings (${data.warnings.length})`, lines(data.warnings), true);
    if (data.tail && data.tail.length && data.live) fold("fold-log", "End of the log", lines(data.tail), true);
    const pairs = (values) => element("table", {}, ...values.map(([name, value]) => element("tr", {}, element("td", {}, name), element("td", { class: "left" }, value))));
    if (data.facts && data.facts.length) fold("fold-facts", "Where it ran", pairs(data.facts));
    fold("fold-versions", "Versions", pairs(data.versions));
    if (data.input) fold("fold-input", "Input, with all defaults (out.json)", lines([data.input]));
  }

  // ---- all of it, once or again and again --------------------------------------------------------------------------
  function heading() {
    document.getElementById("heading").replaceChildren(element("h1", {}, data.title), element("div", { class: "soft path" }, data.folder));
    document.getElementById("footer").replaceChildren(element("div", { class: "soft" }, `Made by Lockstep on ${data.made}`));
  }
  function state(kind, text) {
    const node = document.getElementById("state");
    node.className = kind;
    node.textContent = text;
  }
  function draw() {
    heading(); cards(); scaling(); learning(); budget(); profile(); parity(); systems(); details();
  }
  async function refresh() {
    try {
      const answer = await fetch("data.json", { headers: { "If-None-Match": `"${data.fingerprint}"` }, cache: "no-store" });
      if (answer.status === 200) { data = await answer.json(); draw(); }
      state(answer.ok || answer.status === 304 ? "live" : "lost", answer.ok || answer.status === 304 ? "live" : "the run's files cannot be read just now");
    } catch (error) {
      state("lost", "no answer from dp report --serve");
    }
    setTimeout(refresh, REFRESH);
  }

  document.querySelector("noscript").remove();
  draw();
  dark.addEventListener("change", draw);
  window.lockstepCharts = charts;
  if (data.live) { state("live", "live"); setTimeout(refresh, REFRESH); }
})();
