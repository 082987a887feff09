// What would more devices bring? The formulas are those of workshop_lib/lessons/forecasting/forecast.py and catalogue.py; networks
// and machines come from the library's presets by way of data.js.
"use strict";
(() => {
  const { allreduceS, hierarchicalAllreduceS, ringAcrossNodesS, overlappedStepS } = window.workshop;
  const { count, digits, duration, parsed, make, controls, table, mount } = window.workshop;
  const DEVICES = [...Array(13).keys()].map((power) => 2 ** power);

  // Seconds of a step on one device: {fixed_s, s_per_sample, backward_share}; null where nothing is known.
  function computeOf(model, machine, samplesPerS) {
    if (samplesPerS) return { fixed_s: 0, s_per_sample: 1 / samplesPerS, backward_share: 2 / 3 };
    if (machine.compute[model.name]) return machine.compute[model.name];
    const share = machine.utilization[model.kind];
    if (share === undefined) return null;
    const peak = Math.max(...Object.values(machine.peak_flops_per_s));
    return { fixed_s: 0, s_per_sample: model.operations / (share * peak), backward_share: 2 / 3 };
  }

  function messagesOf(model, backend, compression) {
    if (!backend.message_bytes) return backend.message_bytes === null ? 1 : model.tensors;
    return Math.min(model.tensors, Math.ceil((4 * model.parameters) / compression / backend.message_bytes));
  }

  function machineAllreduceS(machine, devices, bytes, network) {
    const shape = [Math.ceil(devices / machine.devices_a_node), Math.min(devices, machine.devices_a_node)];
    const between = { ...machine.between, s_per_byte: machine.between.s_per_byte / network };
    const ring = ringAcrossNodesS(...shape, bytes, machine.inside, between);
    if (machine.collectives === "ring across nodes") return ring;
    const all = machine.collectives === "cheapest";
    const names = all ? ["rabenseifner", "recursive doubling", "ring"] : ["rabenseifner"];
    const apart = names.map((name) => hierarchicalAllreduceS(name, ...shape, bytes, machine.inside, between));
    return Math.min(...apart, ...(all ? [ring] : []));
  }

  function point(model, machine, settings, devices) {
    const { backends, lateness } = window.workshopData;
    const backend = backends[settings.backend], overlap = settings.overlap ?? backend.overlap;
    const compute = computeOf(model, machine, settings.samples_per_s);
    const computeS = compute.fixed_s + settings.batch_size * compute.s_per_sample;
    const messages = messagesOf(model, backend, settings.compression);
    const messageS = machineAllreduceS(machine, devices, (4 * model.parameters) / settings.compression / messages, settings.network);
    const lateS = computeS * Math.sqrt(2 * Math.log(devices));
    const backwardS = compute.backward_share * computeS;
    let stepS = computeS + messages * messageS;
    if (overlap) stepS = overlappedStepS(computeS - backwardS, backwardS, messageS, messages);
    stepS = Math.max(stepS, computeS + lateness.typical * lateS);
    const globalBatch = settings.batch_size * devices, target = model.target;
    const learning = target ? 1 / (1 + globalBatch / target.critical_batch) : null;
    return {
      devices, messages, global_batch: globalBatch, compute_s: computeS, step_s: stepS, learning,
      communication_s: messages * messageS,
      least_s: Math.max(computeS, messages * messageS),
      most_s: computeS + lateness.at_worst * lateS + lateness.slower_messages * messages * messageS,
      samples_per_s: globalBatch / stepS, efficiency: computeS / stepS,
      time_to_target_s: target ? (stepS * target.least_samples) / learning / globalBatch : null,
    };
  }
  const forecast = (model, machine, settings) => DEVICES.map((devices) => point(model, machine, settings, devices));

  function answer(points) {
    const last = points.at(-1), taken = points.find((at) => at.communication_s > at.compute_s);
    const grown = points.find((at) => at.learning !== null && at.learning < 0.5);
    const scale = `On ${count(last.devices)} devices a step takes ${duration(last.step_s)}, at an efficiency of ${Math.round(100 * last.efficiency)}%`;
    const over = taken ? `; communication takes over at ${count(taken.devices)}.` : "; communication never takes over.";
    return scale + over + (grown ? ` From ${count(grown.devices)} on, the global batch is above the critical one.` : "");
  }

  // Efficiency against devices: a line in its range, 0 to 100 %.
  function curve(points) {
    const x = (index) => 46 + (index * 540) / (points.length - 1), y = (share) => 14 + 200 * (1 - Math.min(1.05, share));
    const work = points.map((at) => at.efficiency * at.step_s);
    const path = (shares) => shares.map((share, index) => `${x(index).toFixed(1)},${y(share).toFixed(1)}`);
    const low = path(points.map((at, index) => work[index] / at.most_s)), high = path(points.map((at, index) => work[index] / at.least_s));
    const words = "Efficiency against devices, with its range; the table below has the numbers.";
    const drawing = make("svg", { viewBox: "0 0 600 258", role: "img", "aria-label": words });
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      drawing.append(make("line", { class: "grid", x1: 46, x2: 586, y1: y(share), y2: y(share) }));
      drawing.append(make("text", { x: 40, y: y(share) + 4, "text-anchor": "end" }, `${100 * share}%`));
    }
    points.forEach((at, index) => index % 2 || drawing.append(make("text", { x: x(index), y: 232, "text-anchor": "middle" }, count(at.devices))));
    drawing.append(make("text", { x: 316, y: 252, "text-anchor": "middle" }, "devices"));
    drawing.append(make("path", { class: "range", d: `M${[...high, ...low.reverse()].join("L")}Z` }));
    drawing.append(make("path", { class: "curve", d: `M${path(points.map((at) => at.efficiency)).join("L")}` }));
    return drawing;
  }

  function rows(points) {
    return points.map((at) => {
      const percent = (seconds) => Math.round((100 * at.efficiency * at.step_s) / seconds);
      const range = at.devices > 1 ? ` (${percent(at.most_s)}–${percent(at.least_s)})` : "";
      const target = at.time_to_target_s === null ? [] : [`${Math.round(100 * at.learning)}%`, duration(at.time_to_target_s)];
      return [count(at.devices), duration(at.step_s), count(at.samples_per_s), `${Math.round(100 * at.efficiency)}%${range}`, ...target];
    });
  }

  function start(place) {
    const { networks, machines, backends } = window.workshopData;
    const form = make("form", { class: "workshop-controls" }), sentence = make("p", { class: "workshop-answer", "aria-live": "polite" });
    const shown = make("div");
    place.append(form, sentence, shown);
    const compressions = { none: 1, "16 bits": 2, "100 times": 100 }, speeds = { "as it is": 1, "4 times": 4, "a quarter": 0.25 };
    const overlaps = { "as the backend": null, no: false, yes: true };
    const fields = {
      model: { label: "model", options: Object.keys(networks), value: "resnet-50" },
      machine: { label: "machine", options: Object.keys(machines), value: "polaris" },
      samples: { label: "samples/s of one device (empty: as published)", value: "" },
      backend: { label: "backend", options: Object.keys(backends), value: "ddp" },
      batch_size: { label: "batch per device", min: 0, max: 12, value: 5, show: (power) => count(2 ** power) },
      overlap: { label: "overlap", options: Object.keys(overlaps), value: "as the backend" },
      compression: { label: "compression", options: Object.keys(compressions), value: "none" },
      network: { label: "network speed", options: Object.keys(speeds), value: "as it is" },
    };
    controls(form, fields, (chosen) => {
      const model = networks[chosen.model], machine = machines[chosen.machine];
      const given = chosen.samples.trim() ? parsed(chosen.samples) : null;
      if (given !== null ? !(given > 0) : !computeOf(model, machine)) {
        const unknown = `No speed of ${chosen.model} on ${chosen.machine} is known, and its peak does not tell: measure it on one device, and type its samples/s above.`;
        sentence.textContent = given === null ? unknown : `samples/s is “${chosen.samples}”: give a number above 0.`;
        return shown.replaceChildren();
      }
      const points = forecast(model, machine, {
        backend: chosen.backend, batch_size: 2 ** chosen.batch_size, overlap: overlaps[chosen.overlap],
        compression: compressions[chosen.compression], network: speeds[chosen.network], samples_per_s: given,
      });
      sentence.textContent = answer(points);
      const headings = ["devices", "step", "samples/s", "efficiency (range)", ...(model.target ? ["useful samples", "time to target"] : [])];
      const aim = model.target ? ` Target: ${model.target.what}.` : "";
      const note = make("p", { class: "workshop-note" }, `${model.what}; ${machine.what}.${aim} The shaded range has nine of ten of the published points that it was fitted to.`);
      shown.replaceChildren(curve(points), note, table(headings, rows(points)));
    });
  }

  window.workshop.forecast = { forecast, answer };
  mount("forecast-calculator", start);
})();
