// Gradients sent in buckets while backward is still computing: each message as it starts and ends, the step that comes
// of it, and the same for every other bucket size. The formula is overlapped_step_s of workshop_lib/lessons/forecasting/cost_model.py.
"use strict";
(() => {
  const { allreduceS, overlappedStepS, count, three, duration, make, controls, mount } = window.workshop;
  const MIB = 2 ** 20, TENSORS = 160;

  // As many messages as fill the buckets, but not more than there are tensors.
  const messagesOf = (bytes, bucket) => Math.min(TENSORS, Math.ceil(bytes / bucket));

  // The messages of a step as {ready, begin, end}: each waits for its gradients and for the message before it.
  function schedule(forwardS, backwardS, messageS, messages) {
    const sent = [];
    for (let part = 1; part <= messages; part++) {
      const ready = forwardS + (backwardS * part) / messages, begin = Math.max(ready, sent.at(-1)?.end ?? 0);
      sent.push({ ready, begin, end: begin + messageS });
    }
    return sent;
  }

  function stepOf(settings, bucket) {
    const messages = messagesOf(settings.bytes, bucket);
    const messageS = allreduceS("ring", settings.ranks, settings.bytes / messages, settings.link);
    return { messages, messageS, stepS: overlappedStepS(settings.forward_s, settings.backward_s, messageS, messages) };
  }

  function timeline(settings, { messages, messageS, stepS }, shownMessages) {
    const x = (seconds) => 84 + (500 * seconds) / stepS, { forward_s: forward, backward_s: backward } = settings;
    const sent = schedule(forward, backward, messageS, messages).slice(0, shownMessages);
    const drawing = make("svg", { viewBox: "0 0 600 120", role: "img", "aria-label": "Timeline of one step: computing above, messages below" });
    const bar = (kind, y, begin, end, name = "") => {
      drawing.append(make("rect", { class: kind, x: x(begin), y, width: Math.max(0.5, x(end) - x(begin)), height: 30 }));
      if (name) drawing.append(make("text", { class: "inside", x: (x(begin) + x(end)) / 2, y: y + 20, "text-anchor": "middle" }, name));
    };
    drawing.append(make("text", { x: 78, y: 30, "text-anchor": "end" }, "computing"), make("text", { x: 78, y: 74, "text-anchor": "end" }, "messages"));
    bar("forward", 10, 0, forward, x(forward) - x(0) > 50 ? "forward" : "");
    bar("backward", 10, forward, forward + backward, x(backward) - x(0) > 60 ? "backward" : "");
    sent.forEach(({ begin, end }, index) => bar("message", 54, begin, end, x(end) - x(begin) > 22 ? String(index + 1) : ""));
    const ends = forward + backward;
    drawing.append(make("line", { class: "grid", x1: x(ends), x2: x(ends), y1: 4, y2: 92 }));
    drawing.append(make("text", { x: Math.min(x(ends), 585), y: 110, "text-anchor": "end" }, `${duration(ends)} computing`));
    return drawing;
  }

  // Step time against bucket size, with the chosen one marked.
  function curve(settings, chosen) {
    const sizes = [...Array(49).keys()].map((quarter) => 2 ** (-4 + quarter / 4) * MIB);
    const times = sizes.map((size) => stepOf(settings, size).stepS), most = Math.max(...times);
    const x = (size) => 84 + (500 * (Math.log2(size / MIB) + 4)) / 12, y = (seconds) => 12 + 150 * (1 - seconds / most);
    const drawing = make("svg", { viewBox: "0 0 600 210", role: "img", "aria-label": `Step time against bucket size: the longest ${duration(most)}, the shortest ${duration(Math.min(...times))}` });
    for (const part of [0, 0.5, 1]) {
      drawing.append(make("line", { class: "grid", x1: 84, x2: 584, y1: y(part * most), y2: y(part * most) }));
      drawing.append(make("text", { x: 78, y: y(part * most) + 4, "text-anchor": "end" }, duration(part * most)));
    }
    for (const power of [-4, -2, 0, 2, 4, 6, 8]) drawing.append(make("text", { x: x(2 ** power * MIB), y: 182, "text-anchor": "middle" }, `${three(2 ** power)}`));
    drawing.append(make("text", { x: 334, y: 204, "text-anchor": "middle" }, "bucket size (MiB)"));
    drawing.append(make("path", { class: "curve", d: `M${sizes.map((size, index) => `${x(size).toFixed(1)},${y(times[index]).toFixed(1)}`).join("L")}` }));
    drawing.append(make("circle", { class: "chosen", cx: x(chosen), cy: y(stepOf(settings, chosen).stepS), r: 6 }));
    return drawing;
  }

  function start(place) {
    const form = make("form", { class: "workshop-controls" }), said = make("p", { class: "workshop-answer", "aria-live": "polite" });
    const step = make("button", { type: "button" }, "Next message"), all = make("button", { type: "button" }, "Whole step");
    const again = make("button", { type: "button" }, "From the start"), shown = make("div");
    place.append(form, make("p", { class: "workshop-buttons" }, step, all, again), said, shown);
    const fields = {
      ranks: { label: "ranks", min: 1, max: 12, value: 4, show: (power) => count(2 ** power) },
      size: { label: "gradients", min: 0, max: 12, value: 7, show: (power) => `${count(2 ** power)} MiB` },
      bucket: { label: "bucket size", min: -4, max: 8, value: 4, step: 0.5, show: (power) => `${three(2 ** power)} MiB` },
      latency: { label: "latency α", min: 0, max: 10, value: 5, show: (power) => duration(1e-6 * 2 ** power) },
      bandwidth: { label: "bandwidth 1/β", min: -3, max: 8, value: 3, show: (power) => `${2 ** power} GB/s` },
      compute: { label: "forward and backward", min: 0, max: 10, value: 6, show: (power) => duration(1e-3 * 2 ** power) },
    };
    let chosen, messages = Infinity;
    function draw() {
      const computeS = 1e-3 * 2 ** chosen.compute, bucket = 2 ** chosen.bucket * MIB;
      const settings = {
        ranks: 2 ** chosen.ranks, bytes: 2 ** chosen.size * MIB, forward_s: computeS / 3, backward_s: (2 / 3) * computeS,
        link: { latency_s: 1e-6 * 2 ** chosen.latency, s_per_byte: 1e-9 / 2 ** chosen.bandwidth },
      };
      const made = stepOf(settings, bucket);
      const plural = made.messages === 1 ? "1 message" : `${count(made.messages)} messages`;
      const waiting = Math.max(0, made.stepS - computeS);
      said.textContent = `${plural} of ${duration(made.messageS)} each: the step takes ${duration(made.stepS)}, of which computing can't hide ${duration(waiting)}. Without overlap it would take ${duration(computeS + made.messages * made.messageS)}.`;
      shown.replaceChildren(timeline(settings, made, messages), curve(settings, bucket));
      step.disabled = all.disabled = messages >= made.messages;
    }
    step.addEventListener("click", () => (messages++, draw()));
    all.addEventListener("click", () => ((messages = Infinity), draw()));
    again.addEventListener("click", () => ((messages = 0), draw()));
    controls(form, fields, (values) => ((chosen = values), draw()));
  }

  window.workshop.buckets = { schedule, messagesOf };
  mount("bucket-simulator", start);
})();
