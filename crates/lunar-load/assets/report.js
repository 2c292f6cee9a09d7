"use strict";
(() => {
  const root = document.documentElement;
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const digits = (figure, most = 3) => Number(figure.toPrecision(most)).toString();
  const scaled = (figure, steps) => {
    let [size, unit] = steps[0];
    for (const step of steps) if (Math.abs(figure) >= step[0]) [size, unit] = step;
    return digits(figure / size) + unit;
  };
  const units = {
    count: (figure) => digits(figure, 6),
    bytes: (figure) => scaled(figure, [[1, " B"], [1024, " KiB"], [1048576, " MiB"], [1073741824, " GiB"]]),
    bytes_per_second: (figure) => scaled(figure, [[1, " B/s"], [1e3, " kB/s"], [1e6, " MB/s"], [1e9, " GB/s"]]),
    per_second: (figure) => scaled(figure, [[1, ""], [1e3, "k"], [1e6, "M"]]),
    micros: (figure) => scaled(figure, [[1, " µs"], [1e3, " ms"], [1e6, " s"]]),
    percent: (figure) => digits(figure) + " %",
    nines: (figure) => digits(100 - 100 / figure, 12) + " %",
  };
  const steps = (from, to, parts) => {
    const found = [];
    for (let ten = 10 ** Math.floor(Math.log10(from)); ten <= to; ten *= 10) {
      for (const part of parts) if (ten * part >= from && ten * part <= to) found.push(ten * part);
    }
    return found;
  };
  // Marks at an axis: where figures are, where they are few and double; else at round ones.
  const marks = (axis, places) => (plot, at, from, to, step) => {
    if (axis.unit === "nines") return [1, 2, ...steps(10, to, [1])].filter((x) => x <= to);
    if (axis.scale === "log2") return places;
    if (axis.scale === "log10") return steps(from, to, to / from > 1e3 ? [1] : [1, 2, 5]);
    const found = [];
    for (let mark = Math.ceil(from / step) * step; mark <= to; mark += step) found.push(mark);
    return found;
  };
  const range = (axis, places) => (plot, low, high) => {
    if (low === null || high === null) return axis.scale === "linear" ? [0, 1] : [1, 10];
    if (axis.unit === "nines") return [1, high * 1.2];
    if (axis.scale === "linear") return [0, high > 0 ? high * 1.08 : 1];
    const gap = axis.scale === "log2" ? 1.15 : 1.3;
    return [low / gap, high * gap];
  };
  const scale = (axis) => ({
    time: false,
    distr: axis.scale === "linear" ? 1 : 3,
    log: axis.scale === "log2" ? 2 : 10,
    range: range(axis),
  });
  const ruler = (axis, places, size) => ({
    label: axis.label,
    labelSize: 20,
    size,
    stroke: () => colour("--soft"),
    grid: { stroke: () => colour("--line"), width: 1 },
    ticks: { stroke: () => colour("--line"), width: 1 },
    splits: marks(axis, places),
    filter: (plot, splits) => splits,
    values: (plot, splits) => splits.map((mark) => (mark === null ? "" : units[axis.unit](mark))),
  });
  const dashes = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
  const line = (series, at, y) => ({
    label: series.label,
    stroke: () => colour("--c" + (at % 8)),
    width: 2,
    dash: dashes[Math.floor(at / 8) % dashes.length],
    spanGaps: true,
    points: { show: series.y.length <= 16, size: 7, fill: () => colour("--paper") },
    value: (plot, figure) => (figure === null || figure === undefined ? "–" : units[y.unit](figure)),
  });
  const drawn = [];
  const draw = (place, plot) => {
    const x = { label: plot.x.label, value: (u, figure) => (figure === null ? "–" : units[plot.x.unit](figure)) };
    const options = {
      width: place.clientWidth || 600,
      height: 300,
      scales: { x: scale(plot.x), y: scale(plot.y) },
      axes: [ruler(plot.x, plot.at, 44), ruler(plot.y, plot.at, 84)],
      series: [x, ...plot.series.map((series, at) => line(series, at, plot.y))],
      cursor: { points: { size: 8 } },
    };
    const data = [plot.at, ...plot.series.map((series) => series.y)];
    drawn.push([new uPlot(options, data, place), place]);
    place.dataset.drawn = "yes";
  };
  const plots = JSON.parse(document.getElementById("plots").textContent);
  plots.forEach((plot, at) => draw(document.getElementById("plot-" + at), plot));
  const again = () => drawn.forEach(([plot]) => plot.redraw());
  const fit = () => drawn.forEach(([plot, place]) => plot.setSize({ width: place.clientWidth, height: 300 }));
  addEventListener("resize", fit);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  addEventListener("beforeprint", () => { root.classList.add("printing"); again(); });
  addEventListener("afterprint", () => { root.classList.remove("printing"); again(); });
})();
