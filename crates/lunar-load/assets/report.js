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
  const ruler = (axis, places, size, label) => ({
    ...label,
    size,
    stroke: () => colour("--soft"),
    grid: { stroke: () => colour("--line"), width: 1 },
    ticks: { stroke: () => colour("--line"), width: 1 },
    splits: marks(axis, places),
    filter: (plot, splits) => splits,
    values: (plot, splits) => splits.map((mark) => (mark === null ? "" : units[axis.unit](mark))),
  });
  const dashes = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
  const COLOURS = 4;
  const styleOf = (series, at) => series.style ?? [at % COLOURS, Math.floor(at / COLOURS)];
  const strokeOf = (series, at) => colour("--c" + (styleOf(series, at)[0] % COLOURS));
  const line = (series, at) => ({
    stroke: () => strokeOf(series, at),
    width: 2,
    dash: dashes[styleOf(series, at)[1] % dashes.length],
    spanGaps: true,
    points: { show: series.y.length <= 16, size: 7, fill: () => colour("--paper") },
  });
  const FONT = 'px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif';
  const pen = document.createElement("canvas").getContext("2d");
  const widthOf = (text) => { pen.font = 12 + FONT; return pen.measureText(text).width; };
  const shortened = (text, width) => {
    if (widthOf(text) <= width) return text;
    let length = text.length;
    while (length > 1 && widthOf(text.slice(0, length) + "…") > width) length -= 1;
    return text.slice(0, length) + "…";
  };
  // Room for the names to the right of the lines.
  const room = (plot, width) => Math.min(Math.max(...plot.series.map((one) => widthOf(one.label))) + 14, width * 0.4);
  // Writes each name at the end of its line; names that would overlap are moved apart.
  const writeNames = (plot) => (u) => {
    const { ctx, bbox } = u;
    const scale = devicePixelRatio;
    const gap = 14 * scale;
    const edge = bbox.left + bbox.width;
    const ends = plot.series.map((series, at) => {
      const last = series.y.findLastIndex((figure) => figure !== null);
      if (last < 0) return null;
      const [x, y] = [u.valToPos(plot.at[last], "x", true), u.valToPos(series.y[last], "y", true)];
      return { x, y, label: y, text: series.label, stroke: strokeOf(series, at) };
    }).filter((end) => end !== null).sort((one, other) => one.y - other.y);
    ends.forEach((end, at) => { if (at > 0) end.label = Math.max(end.y, ends[at - 1].label + gap); });
    let lowest = bbox.top + bbox.height;
    for (const end of ends.toReversed()) {
      end.label = Math.min(end.label, lowest);
      lowest = end.label - gap;
    }
    ctx.save();
    ctx.font = 12 * scale + FONT;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    for (const end of ends) {
      ctx.fillStyle = ctx.strokeStyle = end.stroke;
      ctx.lineWidth = scale / 2;
      ctx.setLineDash([]);
      ctx.beginPath();
      ctx.moveTo(end.x, end.y);
      ctx.lineTo(edge + 6 * scale, end.label);
      ctx.stroke();
      ctx.fillText(shortened(end.text, room(plot, u.width) - 12), edge + 8 * scale, end.label);
    }
    ctx.restore();
  };
  // Writes the figures under the pointer below the plot.
  const writeValues = (plot, place) => (u) => {
    const at = u.cursor.idx;
    const shown = (series) => series.y[at] === null ? [] : [series.label + " " + units[plot.y.unit](series.y[at])];
    const text = at === null || at === undefined ? "" : plot.x.label + " " + units[plot.x.unit](plot.at[at]) + ": " + plot.series.flatMap(shown).join(", ");
    place.nextElementSibling.textContent = text;
  };
  const drawn = [];
  const draw = (place, plot) => {
    const options = {
      width: place.clientWidth || 600,
      height: 300,
      scales: { x: scale(plot.x), y: scale(plot.y) },
      axes: [ruler(plot.x, plot.at, 44, { label: plot.x.label, labelSize: 20 }), ruler(plot.y, plot.at, 78, {})],
      padding: [null, (u) => room(plot, u.width), null, null],
      series: [{}, ...plot.series.map(line)],
      legend: { show: false },
      cursor: { points: { size: 8 } },
      hooks: { draw: [writeNames(plot)], setCursor: [writeValues(plot, place)] },
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
