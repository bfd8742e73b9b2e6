"use strict";
// Draws the plots of every report on the page from the JSON beside it. Plotly is inlined above; nothing is fetched.

const kConfig = {displaylogo: false, responsive: false, displayModeBar: false};
const kFont = {family: "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif", size: 12, color: "#1f2328"};
// Under these cell sizes a written value would not be readable.
const kLeastTextWidth = 30;
const kLeastTextHeight = 16;
const kMostCellSize = 64;
const kLeastCellHeight = 8;
const kMostGridHeight = 560;
const kLeft = 52;
const kRight = 26;

function cellText(value, width) {
  return value === null ? "–" : value.toFixed(width >= 40 ? 2 : 1);
}

function heatmapLayout(node, data) {
  const width = node.clientWidth;
  const cellWidth = Math.min(kMostCellSize, (width - kLeft - kRight) / data.dp);
  const square = Math.min(kMostCellSize, Math.max(kLeastCellHeight, cellWidth), kMostGridHeight / data.pp);
  const cellHeight = Math.max(square, Math.min(26, kMostGridHeight / data.pp));
  const top = 62;
  const bottom = 46;
  const gridWidth = cellWidth * data.dp;
  const layout = {
    width, height: cellHeight * data.pp + top + bottom, font: kFont, plot_bgcolor: "#dddddd", dragmode: false,
    margin: {l: kLeft, r: Math.max(kRight, width - kLeft - gridWidth), t: top, b: bottom},
    // Axis titles as annotations: Plotly moves its own to where the tick labels leave a gap.
    annotations: [
      {text: "dp rank", xref: "paper", yref: "paper", x: 0.5, y: 0, yshift: -22, yanchor: "top", showarrow: false},
      {text: "stage", xref: "paper", yref: "paper", x: 0, y: 0.5, xshift: -26, xanchor: "right", textangle: -90, showarrow: false},
    ],
    xaxis: {dtick: Math.max(1, Math.ceil(data.dp * 24 / gridWidth)), tick0: 0,
            showgrid: false, zeroline: false, ticks: "", fixedrange: true, range: [-0.5, data.dp - 0.5]},
    yaxis: {dtick: Math.max(1, Math.ceil(14 / cellHeight)), tick0: 0,
            ticklabelstandoff: 4,
            showgrid: false, zeroline: false, ticks: "", fixedrange: true, range: [data.pp - 0.5, -0.5]},
  };
  return {layout, hasText: cellWidth >= kLeastTextWidth && cellHeight >= kLeastTextHeight, cellWidth, gridWidth};
}

function drawHeatmap(node, data, grid) {
  const {layout, hasText, cellWidth, gridWidth} = heatmapLayout(node, data);
  const gap = cellWidth > 12 ? 1 : 0;
  const trace = {
    type: "heatmap", z: grid, zmin: data.range[0], zmax: data.range[1], colorscale: data.colors, xgap: gap, ygap: gap,
    customdata: data.workers, hoverongaps: false,
    hovertemplate: "dp %{x}, stage %{y}, %{customdata}<br>slowdown %{z:.3f}<extra></extra>",
    colorbar: {orientation: "h", thickness: 8, x: 0, xanchor: "left", y: 1, yanchor: "bottom", ypad: 6, xpad: 0,
               lenmode: "pixels", len: Math.max(120, Math.min(gridWidth, 320)), outlinewidth: 0,
               tickvals: [1, 1.25, 1.5], ticktext: ["1.00", "1.25", "≥ 1.50"], ticklabelposition: "outside top"},
  };
  if (hasText) {
    trace.text = grid.map(row => row.map(value => cellText(value, cellWidth)));
    trace.texttemplate = "%{text}";
    trace.textfont = {size: cellWidth >= 40 ? 13 : 11};
  }
  Plotly.react(node, [trace], layout, kConfig);
}

function drawSteps(node, data) {
  const width = node.clientWidth;
  const series = [["base", "base (as recorded)", "#59636e"], ["nodelay", "no launch delays", "#0969da"], ["ideal", "ideal", "#1a7f37"]];
  const traces = series.map(([key, name, color]) => ({
    type: "scatter", mode: data.steps.length > 200 ? "lines" : "lines+markers", name, x: data.steps, y: data.times[key],
    line: {color, width: 1.5}, marker: {color, size: 5}, hovertemplate: "%{y:.4g} s<extra>" + name + "</extra>",
  }));
  const layout = {
    width, height: 300, font: kFont, hovermode: "x unified", margin: {l: kLeft, r: kRight, t: 36, b: 46}, dragmode: false,
    legend: {orientation: "h", x: 0, y: 1.02, yanchor: "bottom"},
    xaxis: {type: "category", title: {text: "step", standoff: 4}, nticks: Math.max(3, Math.floor(width / 70)), tickangle: 0,
            fixedrange: true, showgrid: false},
    yaxis: {title: {text: "step time (s)", standoff: 4}, rangemode: "tozero", fixedrange: true, gridcolor: "#e6e9ec"},
  };
  Plotly.react(node, traces, layout, kConfig);
}

function setUp(section, data) {
  const find = name => section.querySelector("." + name);
  const slider = find("step");
  const label = find("step-label");
  const drawStep = () => {
    const index = Number(slider.value);
    const slowdown = data.slowdowns[index];
    label.textContent = "step " + data.shown_steps[index] + (slowdown === null ? "" : ": slowdown " + slowdown.toFixed(3));
    drawHeatmap(find("by-step"), data, data.grids[index]);
  };
  const move = by => {
    slider.value = String(Number(slider.value) + by);
    drawStep();
  };
  slider.addEventListener("input", drawStep);
  find("previous").addEventListener("click", () => move(-1));
  find("next").addEventListener("click", () => move(1));
  return () => {
    drawHeatmap(find("workers"), data, data.grid);
    drawStep();
    drawSteps(find("times"), data);
  };
}

const kDraws = Array.from(document.querySelectorAll(".report"), section =>
  setUp(section, JSON.parse(section.querySelector("script[type='application/json']").textContent)));
let width = 0;
const drawAll = () => {
  // A phone's address bar changes the height only: not worth drawing again.
  if (document.documentElement.clientWidth === width) return;
  width = document.documentElement.clientWidth;
  kDraws.forEach(draw => draw());
};
window.addEventListener("resize", drawAll);
drawAll();
