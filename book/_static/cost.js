// The formulas of workshop_lib/lessons/forecasting/cost_model.py, and what the pages with controls share. A test runs the
// formulas in a browser and compares them with Python's, so change both or neither.
"use strict";
window.workshop = {};
(() => {
  // Of p ranks: rounds, and of the whole message what the busiest rank sends or receives, and what it sums.
  const withExtraRanks = (onAPowerOfTwo) => (p) => {
    const power = 2 ** Math.floor(Math.log2(p));
    const extra = power === p ? [0, 0, 0] : [2, 2, 1];
    return onAPowerOfTwo(power).map((value, index) => value + extra[index]);
  };
  const ALGORITHMS = {
    "naive": (p) => [2 * (p - 1), 2 * (p - 1), p - 1],
    "ring": (p) => [2 * (p - 1), 2 * (p - 1) / p, (p - 1) / p],
    "recursive doubling": withExtraRanks((p) => Array(3).fill(Math.log2(p))),
    "rabenseifner": withExtraRanks((p) => [2 * Math.log2(p), 2 * (p - 1) / p, (p - 1) / p]),
  };

  function allreduceS(algorithm, ranks, messageBytes, link) {
    if (ranks === 1) return 0;
    const [rounds, sent] = ALGORITHMS[algorithm](ranks);
    return rounds * link.latency_s + messageBytes * sent * link.s_per_byte;
  }

  function hierarchicalAllreduceS(algorithm, nodes, ranksANode, messageBytes, inside, between) {
    return allreduceS("ring", ranksANode, messageBytes, inside) + allreduceS(algorithm, nodes, messageBytes, between);
  }

  function ringAcrossNodesS(nodes, ranksANode, messageBytes, inside, between) {
    const ranks = nodes * ranksANode, hops = 2 * (nodes - 1);
    const slowest = nodes === 1 ? inside.s_per_byte : Math.max(inside.s_per_byte, between.s_per_byte);
    const bytesS = allreduceS("ring", ranks, messageBytes, { latency_s: 0, s_per_byte: slowest });
    return bytesS + (2 * (ranks - 1) - hops) * inside.latency_s + hops * between.latency_s;
  }

  function overlappedStepS(forwardS, backwardS, messageS, messages) {
    return forwardS + Math.max(backwardS / messages + messages * messageS, backwardS + messageS);
  }

  const even = (value) => (Math.abs(value % 1) === 0.5 ? 2 * Math.round(value / 2) : Math.round(value));  // as Python rounds
  const count = (value) => even(value).toLocaleString("en-US");
  const three = (value) => String(Number(value.toPrecision(3)));
  const digits = (value) => (value >= 999.5 ? count(value) : three(value));

  function duration(seconds) {
    if (seconds === 0) return "0 s";
    if (seconds < 1) return seconds >= 1e-3 ? `${three(seconds * 1e3)} ms` : `${three(seconds * 1e6)} µs`;
    const [unit, length] = [["days", 86400], ["h", 3600], ["min", 60], ["s", 1]].find(([, each]) => seconds >= each);
    return `${digits(seconds / length)} ${unit}`;
  }

  // 7.5B, 125M, 7e9 or 7,500,000,000 as a number; NaN for anything else.
  function parsed(text) {
    const match = /^([\d.,]+(?:e\d+)?)\s*([TBMK]?)$/i.exec(text.trim());
    return match ? Math.round(Number(match[1].replaceAll(",", "")) * { T: 1e12, B: 1e9, M: 1e6, K: 1e3, "": 1 }[match[2].toUpperCase()]) : NaN;
  }

  // Element of HTML or, with an SVG tag, of a drawing: make("p", {class: "note"}, "text", otherElement).
  const DRAWN = new Set(["svg", "g", "rect", "line", "path", "text", "circle"]);
  function make(tag, attributes = {}, ...content) {
    const element = DRAWN.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...content);
    return element;
  }

  // A labeled control per field; `update` gets their values now and after each change. A field has a label and a
  // value, and options (a list to choose from), or min, max and show (a slider), or neither (text, or a box to tick).
  function controls(place, fields, update) {
    const inputs = {};
    const values = () => Object.fromEntries(Object.entries(fields).map(([name, field]) => {
      const input = inputs[name];
      return [name, field.options ? input.value : field.max ? Number(input.value) : input.type === "checkbox" ? input.checked : input.value];
    }));
    for (const [name, field] of Object.entries(fields)) {
      const shown = make("output");
      if (field.options) {
        inputs[name] = make("select", {}, ...field.options.map((option) => make("option", { value: option }, option)));
      } else if (field.max) {
        inputs[name] = make("input", { type: "range", min: field.min, max: field.max, step: field.step ?? 1 });
      } else {
        inputs[name] = make("input", { type: typeof field.value === "boolean" ? "checkbox" : "text" });
      }
      inputs[name].type === "checkbox" ? (inputs[name].checked = field.value) : (inputs[name].value = field.value);
      place.append(make("label", {}, make("span", {}, field.label), inputs[name], shown));
      inputs[name].addEventListener("input", () => changed());
      field.shown = shown;
    }
    function changed() {
      for (const [name, field] of Object.entries(fields)) if (field.show) field.shown.value = field.show(values()[name]);
      update(values(), inputs);
    }
    changed();
  }

  // A table with a row of headings; the first cell of each row is a heading too.
  function table(headings, rows) {
    const cellOf = (cell, head, index) => (head || !index ? make("th", { scope: head ? "col" : "row" }, cell) : make("td", {}, cell));
    const row = (cells, head) => make("tr", {}, ...cells.map((cell, index) => cellOf(cell, head, index)));
    return make("div", { class: "workshop-scroll", tabindex: 0 }, make("table", {}, make("thead", {}, row(headings, true)), make("tbody", {}, ...rows.map((cells) => row(cells)))));
  }

  // Call `start` with the element of this id once the page is there, if it is on the page.
  function mount(id, start) {
    document.addEventListener("DOMContentLoaded", () => {
      const place = document.getElementById(id);
      if (place) start(place);
    });
  }

  const formulas = { ALGORITHMS, allreduceS, hierarchicalAllreduceS, ringAcrossNodesS, overlappedStepS };
  Object.assign(window.workshop, formulas, { count, three, digits, duration, parsed, make, controls, table, mount });
})();
