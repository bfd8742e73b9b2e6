"use strict";
// Brings the page to life: arrow keys in heat maps, and the heat map of one step that a slider chooses. Nothing is
// fetched, nothing is written as markup: all text goes through textContent and attributes.

const kTopLevel = 8;
const kLowest = 1000;
const kHighest = 1500;

function levelClass(thousandths) {
  if (thousandths === null) return "unknown";
  const position = Math.min(1, Math.max(0, (thousandths - kLowest) / (kHighest - kLowest)));
  return "l" + Math.round(position * kTopLevel);
}

function ratio(thousandths, digits) {
  return thousandths === null ? "–" : (thousandths / 1000).toFixed(digits);
}

function seconds(value) {
  if (value === null) return "unknown";
  if (value >= 0.9995) return value.toPrecision(3) + " s";
  return value >= 0.0009995 ? (value * 1e3).toPrecision(3) + " ms" : (value * 1e6).toPrecision(3) + " µs";
}

function element(name, attributes, text) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Cells of a grid in rows, reached by arrow keys, Home and End; one of them is reached by tab.
function makeNavigable(table, label) {
  const rows = Array.from(table.querySelectorAll("tbody tr"), row => Array.from(row.querySelectorAll("td")));
  const tell = cell => { label.textContent = cell.getAttribute("aria-label"); };
  const go = cell => {
    for (const row of rows) for (const other of row) other.tabIndex = -1;
    cell.tabIndex = 0;
    cell.focus();
  };
  table.addEventListener("keydown", event => {
    const y = rows.findIndex(row => row.includes(event.target));
    if (y < 0) return;
    const x = rows[y].indexOf(event.target);
    const moves = {ArrowLeft: [y, x - 1], ArrowRight: [y, x + 1], ArrowUp: [y - 1, x], ArrowDown: [y + 1, x],
                   Home: [y, 0], End: [y, rows[y].length - 1]};
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const row = rows[move[0]];
    if (row && row[move[1]]) go(row[move[1]]);
  });
  table.addEventListener("focusin", event => { if (event.target.matches("td")) tell(event.target); });
  table.addEventListener("mouseover", event => { if (event.target.matches("tbody td")) tell(event.target); });
  table.addEventListener("click", event => { if (event.target.matches("tbody td")) go(event.target); });
}

// The grid of workers is a copy of the one over all steps; groups without a second dimension are a list of tiles.
function workerCells(section, holder, label) {
  const table = section.querySelector("table.heat").cloneNode(true);
  table.setAttribute("aria-label", "Slowdown by worker in one step: rows are stages, columns dp ranks");
  holder.replaceChildren(element("div", {class: "scroll"}));
  holder.firstChild.append(table);
  makeNavigable(table, label);
  return Array.from(table.querySelectorAll("tbody td"));
}

function tileCells(group, holder) {
  const list = element("ul", {class: "tiles"});
  const cells = group.names.map(name => {
    const item = element("li", {});
    item.append(element("span", {class: "name"}, name), element("span", {class: "value"}));
    list.append(item);
    return item;
  });
  holder.replaceChildren(list);
  return cells;
}

function fillWorker(cell, name, value, hasNumbers, isWorst) {
  const words = name + ": slowdown " + ratio(value, 3);
  cell.className = levelClass(value) + (isWorst ? " worst" : "");
  cell.setAttribute("aria-label", words);
  cell.title = words;
  cell.textContent = hasNumbers ? ratio(value, 2) : "";
}

function setUpSteps(section, data) {
  const find = name => section.querySelector(".explorer ." + name);
  const slider = find("step");
  const holder = find("step-grid");
  const cellLabel = find("cell-label");
  const cursor = section.querySelector(".cursor");
  let shownGroup = "";
  let cells = [];
  const draw = () => {
    const index = Number(slider.value);
    const name = section.querySelector(".tabs input:checked").value;
    const group = data.groups[name];
    if (name !== shownGroup) {
      shownGroup = name;
      cellLabel.textContent = "";
      cells = name === "worker" ? workerCells(section, holder, cellLabel) : tileCells(group, holder);
    }
    const values = group.values[index];
    const worst = values.indexOf(Math.max(...values.map(value => value === null ? 0 : value)));
    const hasNumbers = holder.querySelector("table.numbered") !== null;
    cells.forEach((cell, at) => {
      if (name === "worker") {
        fillWorker(cell, group.names[at], values[at], hasNumbers, at === worst);
      } else {
        cell.className = levelClass(values[at]) + (at === worst ? " worst" : "");
        cell.lastChild.textContent = ratio(values[at], 3);
      }
    });
    if (holder.contains(document.activeElement)) cellLabel.textContent = document.activeElement.getAttribute("aria-label");
    else if (worst >= 0) cellLabel.textContent = "slowest: " + group.names[worst] + ": slowdown " + ratio(values[worst], 3);
    const [base, nodelay, ideal] = data.times[index];
    const words = "step " + data.steps[index] + ": slowdown " + ratio(data.slowdowns[index], 3);
    find("step-label").textContent = words + "; base " + seconds(base) + ", nodelay " + seconds(nodelay) + ", ideal " + seconds(ideal);
    slider.setAttribute("aria-valuetext", words);
    cursor.setAttribute("d", "M" + data.points[index] + " 0V100");
    find("previous").disabled = index === 0;
    find("next").disabled = index === data.steps.length - 1;
  };
  const move = by => {
    slider.value = String(Number(slider.value) + by);
    draw();
  };
  slider.addEventListener("input", draw);
  find("previous").addEventListener("click", () => move(-1));
  find("next").addEventListener("click", () => move(1));
  for (const radio of section.querySelectorAll(".tabs input")) radio.addEventListener("change", draw);
  section.querySelector(".curve").addEventListener("click", event => {
    const box = event.currentTarget.getBoundingClientRect();
    const at = (event.clientX - box.left) / box.width * 1000;
    const distances = data.points.map(point => Math.abs(point - at));
    slider.value = String(distances.indexOf(Math.min(...distances)));
    draw();
  });
  section.querySelector(".explorer").hidden = false;
  draw();
}

for (const section of document.querySelectorAll(".report")) {
  const workers = section.querySelector("table.heat");
  const data = JSON.parse(section.querySelector("script[type='application/json']").textContent);
  // Its copies are made from the untouched grid, so steps first.
  setUpSteps(section, data);
  makeNavigable(workers, workers.closest("section").querySelector(".cell-label"));
}
