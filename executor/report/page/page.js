"use strict";
// Draws the plots of a report with uPlot from the JSON in #data. Without it, all figures stand on the page already.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  root.classList.add("js");
  const DASHES = [[], [7, 3], [2, 3], [10, 3, 2, 3], [14, 4]];
  const COLOURS = 7;
  const LEFT = 66, NEAR = 40;
  // Of A4 and Letter between a browser's margins; the style sheet fits a plot into what it is printed on.
  const PAPER = 720;
  const spoken = document.getElementById("spoken");
  const charts = [];
  let mode = "time";

  const style = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const palette = () => ({ ink: style("--soft"), grid: style("--grid"), line: style("--line"), faint: style("--faint") });
  let colours = palette();

  // ---- numbers -------------------------------------------------------------------------------------------------
  const BYTES = new Set(["B", "bytes", "Bytes", "B/s", "bytes/s", "Bytes/Second"]);
  const plain = new Intl.NumberFormat("en", { maximumSignificantDigits: 6 });
  function number(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    return size >= 1e9 || size < 1e-4 ? value.toExponential(3) : plain.format(value);
  }
  function size(value) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    while (Math.abs(value) >= 1000 && at < units.length - 1) { value /= 1024; at += 1; }
    return `${Math.abs(value) >= 100 || at === 0 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
  }
  const quantity = (value, units) =>
    BYTES.has(units) ? size(value) + (units.includes("/") ? "/s" : "") : number(value) + (units ? ` ${units}` : "");
  function span(seconds, fine) {
    const sign = seconds < 0 ? "-" : "";
    const s = Math.abs(seconds);
    if (s < 60) return `${sign}${plain.format(fine ? Math.round(s * 1000) / 1000 : s)} s`;
    const whole = Math.round(s), two = (n) => String(n).padStart(2, "0");
    const h = Math.floor(whole / 3600), m = Math.floor(whole / 60) % 60;
    return sign + (h ? `${h}:${two(m)}:${two(whole % 60)}` : `${m}:${two(whole % 60)}`);
  }
  const position = (value) => (mode === "step" ? `step ${plain.format(Math.round(value * 1000) / 1000)}` : span(value, true));

  // ---- data ----------------------------------------------------------------------------------------------------
  function undelta(steps, scale) {
    const found = new Array(steps.length);
    let at = 0;
    for (let i = 0; i < steps.length; i += 1) { at += steps[i]; found[i] = at * scale; }
    return found;
  }
  function xs(series, how) {
    if (how === "step") return series.s;
    const times = undelta(series.t, 0.001);
    return how === "aligned" ? times.map((each) => each - series.o / 1000) : times;
  }
  function table(series, how) {
    const x = xs(series, how);
    const order = x.map((_, i) => i);
    for (let i = 1; i < x.length; i += 1) {
      if (x[i] < x[i - 1]) { order.sort((a, b) => x[a] - x[b] || a - b); break; }
    }
    const place = [], value = [];
    for (const i of order) {
      if (x[i] === null) continue;
      const last = place[place.length - 1];
      // Each value its own place: of several within a millisecond none may hide the others.
      place.push(last !== undefined && x[i] <= last ? last + Math.max(1e-6, Math.abs(last) * 1e-12) : x[i]);
      value.push(series.v[i]);
    }
    return [place, value];
  }

  // ---- plots ---------------------------------------------------------------------------------------------------
  function nearest(u, index, at) {
    const values = u.data[index];
    if (at === null || values[at] != null) return at;
    const x = u.data[0][at];
    let left = at, right = at;
    while (left >= 0 && values[left] == null) left -= 1;
    while (right < values.length && values[right] == null) right += 1;
    const a = left >= 0 ? x - u.data[0][left] : Infinity, b = right < values.length ? u.data[0][right] - x : Infinity;
    const found = a <= b ? left : right;
    const away = Math.min(a, b) / Math.max(1e-12, u.scales.x.max - u.scales.x.min) * u.bbox.width / devicePixelRatio;
    return found >= 0 && found < values.length && away <= NEAR ? found : at;
  }
  function range(plot) {
    return (u, low, high) => {
      if (low == null) return [0, 1];
      if (plot.units === "%" && low >= 0 && high <= 100) return [0, 100];
      // Whether a machine was idle is seen only against nothing.
      if (plot.host && low >= 0) return [0, uPlot.rangeNum(0, high || 1, 0.08, true)[1]];
      return uPlot.rangeNum(low, high, 0.08, true);
    };
  }
  function marks(u, chart) {
    if (chart.how !== "time" || !chart.plot.marks) return;
    const { ctx, bbox } = u;
    ctx.save();
    ctx.font = `${10 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.lineWidth = devicePixelRatio;
    const shown = chart.plot.marks.length <= 24;
    for (const mark of chart.plot.marks) {
      const x = u.valToPos(mark.x / 1000, "x", true);
      if (mark.to !== undefined) {
        const from = Math.max(x, bbox.left), to = Math.min(u.valToPos(mark.to / 1000, "x", true), bbox.left + bbox.width);
        if (to <= from) continue;
        ctx.fillStyle = colours.grid;
        ctx.fillRect(from, bbox.top, to - from, bbox.height);
        continue;
      }
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = colours.faint;
      ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
      if (shown) ctx.fillText(mark.label, x + 4 * devicePixelRatio, bbox.top + 11 * devicePixelRatio);
    }
    ctx.restore();
  }
  const axis = (more) => ({
    stroke: () => colours.ink, font: "11.5px system-ui, sans-serif",
    grid: { stroke: () => colours.grid, width: 1 }, ticks: { show: false }, border: { show: false }, ...more,
  });
  function build(chart) {
    const { plot, box } = chart;
    chart.how = mode === "step" && !plot.steps ? "time" : mode === "aligned" && !plot.aligned ? "time" : mode;
    const how = chart.how;
    const shown = plot.series.map((series, index) => ({ series, index })).filter(({ series }) => how !== "step" || series.s);
    const tables = shown.map(({ series }) => table(series, how));
    const joined = tables.length === 1 ? tables[0] : uPlot.join(tables);
    const width = root.classList.contains("on-paper") ? PAPER : Math.max(200, Math.floor(box.clientWidth));
    const several = shown.length > 1;
    const format = (value) => (value == null ? "–" : quantity(value, plot.units));
    const options = {
      width, height: plot.host ? 124 : 236,
      padding: [10, 10, 0, 0],
      scales: { x: { time: false }, y: { range: range(plot) } },
      cursor: {
        sync: { key: how, scales: ["x", null], setSeries: false },
        drag: { x: true, y: false, setScale: true },
        focus: several ? { prox: 24 } : undefined,
        dataIdx: nearest,
        points: { size: 6, width: 0, fill: (u, i) => u.series[i].stroke(u, i) },
      },
      focus: { alpha: 0.3 },
      legend: { live: true, markers: { width: 2 } },
      axes: [
        axis({ values: (_, places) => places.map((each) => (how === "step" ? number(each) : span(each))), size: 30, space: 70 }),
        axis({ values: (_, places) => places.map((each) => (BYTES.has(plot.units) ? size(each) : number(each))), size: LEFT, space: plot.host ? 30 : 38, gap: 4 }),
      ],
      series: [{ label: how === "step" ? "step" : "time", value: (_, value) => (value == null ? "–" : how === "step" ? number(Math.round(value * 1000) / 1000) : span(value, true)) }].concat(
        shown.map(({ series, index }) => ({
          label: series.label || plot.title, value: (_, value) => format(value),
          stroke: () => style(`--s${index % COLOURS}`), dash: several ? DASHES[index % DASHES.length] : [],
          width: 1.4, show: !chart.hidden.has(index), spanGaps: false,
          points: { show: series.v.length < 60, size: 4, fill: () => style("--paper") },
        }))),
      hooks: {
        drawClear: [(u) => marks(u, chart)],
        setScale: [(u, key) => { if (key === "x" && chart.u === u) spread(chart, u.scales.x.min, u.scales.x.max); }],
        setSeries: [(u, index, changed) => {
          if (index == null || changed.show === undefined) return;
          const of = shown[index - 1].index;
          changed.show ? chart.hidden.delete(of) : chart.hidden.add(of);
          label(u);
        }],
      },
    };
    if (chart.u) chart.u.destroy();
    chart.u = new uPlot(options, joined, box);
    chart.full = [joined[0][0], joined[0][joined[0].length - 1]];
    label(chart.u);
    show(chart, zooms[how] ?? whole(how));
  }
  function label(u) {
    u.root.querySelectorAll(".u-legend .u-series").forEach((row, index) => {
      const head = row.querySelector("th");
      if (index === 0 || !head) return;
      head.tabIndex = 0;
      head.setAttribute("role", "button");
      head.setAttribute("aria-pressed", String(!row.classList.contains("u-off")));
    });
  }

  // ---- zoom: all plots of one axis have one window -----------------------------------------------------------------
  const zooms = {};
  function whole(how) {
    if (how === "time") return [data.from, data.to];
    const there = charts.filter((chart) => chart.u && chart.how === how);
    return [Math.min(...there.map((chart) => chart.full[0])), Math.max(...there.map((chart) => chart.full[1]))];
  }
  function show(chart, [min, max]) {
    const { x } = chart.u.scales;
    if (min < max && (x.min !== min || x.max !== max)) chart.u.setScale("x", { min, max });
  }
  function spread(from, min, max) {
    if (min == null || max == null) return;
    const { how } = from, now = zooms[how] ?? whole(how);
    if (min === now[0] && max === now[1]) return;
    // A double click shows all that the one plot has; all of the job is meant.
    zooms[how] = min <= from.full[0] && max >= from.full[1] ? undefined : [min, max];
    for (const chart of charts) if (chart.u && chart.how === how) show(chart, zooms[how] ?? whole(how));
    back.disabled = Object.values(zooms).every((each) => each === undefined);
  }
  function reset() {
    for (const how of Object.keys(zooms)) {
      zooms[how] = undefined;
      for (const chart of charts) if (chart.u && chart.how === how) show(chart, whole(how));
    }
    back.disabled = true;
  }

  // ---- controls ----------------------------------------------------------------------------------------------------
  const back = document.getElementById("reset");
  back.addEventListener("click", reset);
  const modes = [...document.querySelectorAll("button[data-mode]")];
  for (const button of modes) {
    button.addEventListener("click", () => {
      mode = button.dataset.mode;
      for (const each of modes) each.setAttribute("aria-pressed", String(each === button));
      for (const chart of charts) if (chart.u && !chart.plot.host) build(chart);
    });
  }
  function keys(event, chart) {
    const { u } = chart;
    if (!u) return;
    if (event.target.tagName === "TH" && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      event.target.click();
      return;
    }
    if (event.target !== chart.box) return;
    const { min, max } = u.scales.x;
    const wide = max - min;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const places = u.data[0];
      const by = (event.shiftKey ? Math.max(1, Math.round(places.length / 50)) : 1) * (event.key === "ArrowLeft" ? -1 : 1);
      chart.at = Math.min(places.length - 1, Math.max(0, (u.cursor.idx ?? chart.at ?? 0) + by));
      const left = u.valToPos(places[chart.at], "x");
      if (left < 0 || left > u.over.clientWidth) u.setScale("x", { min: places[chart.at] - wide / 2, max: places[chart.at] + wide / 2 });
      u.setCursor({ left: u.valToPos(places[chart.at], "x"), top: u.over.clientHeight / 2 });
      const words = u.series.slice(1).map((series, i) => {
        const value = u.data[i + 1][nearest(u, i + 1, chart.at)];
        return series.show && value != null ? `${series.label} ${quantity(value, chart.plot.units)}` : "";
      });
      spoken.textContent = `${position(places[chart.at])}: ${words.filter(Boolean).slice(0, 6).join(", ")}`;
    } else if (event.key === "+" || event.key === "-") {
      const centre = u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : (min + max) / 2;
      const half = event.key === "+" ? wide / 4 : wide;
      u.setScale("x", { min: centre - half, max: centre + half });
    } else if (event.key === "Escape" || event.key === "0") {
      reset();
    } else {
      return;
    }
    event.preventDefault();
  }

  // ---- start -------------------------------------------------------------------------------------------------------
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      near.unobserve(entry.target);
      build(charts.find((chart) => chart.box === entry.target));
    }
  }, { rootMargin: "500px" });
  const resized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const chart = charts.find((each) => each.box === target);
      const width = Math.max(200, Math.floor(target.clientWidth));
      if (chart.u && chart.u.width !== width) chart.u.setSize({ width, height: chart.u.height });
    }
  });
  data.plots.forEach((plot, index) => {
    const box = document.getElementById(`chart-${index}`);
    const chart = { plot, box, hidden: new Set() };
    charts.push(chart);
    box.addEventListener("keydown", (event) => keys(event, chart));
    near.observe(box);
    resized.observe(box);
  });
  function recolour() {
    colours = palette();
    for (const chart of charts) if (chart.u) build(chart);
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  addEventListener("beforeprint", () => {
    root.classList.add("on-paper");
    colours = palette();
    for (const chart of charts) build(chart);
  });
  addEventListener("afterprint", () => { root.classList.remove("on-paper"); recolour(); });
})();
