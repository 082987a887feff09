// A ring allreduce, message by message, and what it costs beside other algorithms (cost.js has their formulas).
"use strict";
(() => {
  const { allreduceS, ALGORITHMS, count, duration, make, controls, table, mount } = window.workshop;
  const modulo = (a, p) => ((a % p) + p) % p;

  // The chunk that `rank` of p sends in step `step`, counted from 0: first sums travel, then finished chunks.
  const sends = (rank, step, p) => modulo(rank - step, p);

  // After `steps` steps: held[rank][chunk], the ranks whose numbers are in that sum.
  function held(p, steps) {
    let now = Array.from({ length: p }, (_, rank) => Array.from({ length: p }, () => [rank]));
    for (let step = 0; step < steps; step++) {
      const next = now.map((chunks) => [...chunks]);
      for (let rank = 0; rank < p; rank++) {
        const left = modulo(rank - 1, p), chunk = sends(left, step, p);
        next[rank][chunk] = step < p - 1 ? [...now[rank][chunk], ...now[left][chunk]] : now[left][chunk];
      }
      now = next;
    }
    return now;
  }

  function picture(p, done) {
    const total = 2 * (p - 1), now = held(p, done);
    const rows = now.map((chunks, rank) => [`rank ${rank}`, ...chunks.map((ranks, chunk) => {
      const whole = ranks.length === p, sent = done < total && sends(rank, done, p) === chunk;
      const cell = make("span", { class: `chunk${whole ? " whole" : ""}${sent ? " sent" : ""}` }, [...ranks].sort((a, b) => a - b).join("+"));
      if (sent) cell.append(make("small", {}, ` to ${modulo(rank + 1, p)}`));
      return cell;
    })]);
    return table(["holds", ...now[0].map((_, chunk) => `chunk ${chunk}`)], rows);
  }

  function words(p, done, stepS) {
    const total = 2 * (p - 1), time = duration(done * stepS);
    if (done === total) return `Done: every rank holds the whole sum after ${total} steps and ${time}.`;
    const next = done < p - 1 ? "which adds it to its own" : "which keeps it in place of its own";
    const half = done < p - 1 ? "reduce-scatter" : "allgather";
    return `${done} of ${total} steps, ${time}. Next (${half}): each rank sends the outlined chunk to its right neighbor, ${next}.`;
  }

  function costs(p, bytes, link) {
    const seconds = Object.fromEntries(Object.keys(ALGORITHMS).map((name) => [name, allreduceS(name, p, bytes, link)]));
    const least = Math.min(...Object.values(seconds));
    const rows = Object.entries(seconds).map(([name, each]) => {
      const [rounds, sent] = ALGORITHMS[name](p);
      return [name, count(rounds), `${sent.toFixed(2)} arrays`, duration(each) + (each === least ? ", the quickest" : "")];
    });
    return table(["algorithm", "rounds", "the busiest rank sends", "time"], rows);
  }

  function start(place) {
    const form = make("form", { class: "workshop-controls" });
    const step = make("button", { type: "button" }, "Step"), all = make("button", { type: "button" }, "To the end");
    const again = make("button", { type: "button" }, "From the start");
    const said = make("p", { class: "workshop-answer", "aria-live": "polite" });
    const ring = make("div", { class: "workshop-ring" }), prices = make("div");
    place.append(form, make("p", { class: "workshop-buttons" }, step, all, again), said, ring, make("h2", {}, "What it costs"), prices);
    const fields = {
      ranks: { label: "ranks", min: 2, max: 8, value: 4, show: count },
      size: { label: "array", min: 0, max: 30, value: 20, show: (power) => bytes(2 ** power) },
      latency: { label: "latency α", min: 0, max: 10, value: 2, show: (power) => duration(1e-6 * 2 ** power) },
      bandwidth: { label: "bandwidth 1/β", min: -3, max: 8, value: 3, show: (power) => `${2 ** power} GB/s` },
    };
    let chosen, done = 0;
    function draw() {
      const { ranks: p } = chosen, link = { latency_s: 1e-6 * 2 ** chosen.latency, s_per_byte: 1e-9 / 2 ** chosen.bandwidth };
      done = Math.min(done, 2 * (p - 1));
      said.textContent = words(p, done, link.latency_s + (2 ** chosen.size / p) * link.s_per_byte);
      ring.replaceChildren(picture(p, done));
      prices.replaceChildren(costs(p, 2 ** chosen.size, link));
      step.disabled = all.disabled = done === 2 * (p - 1);
    }
    step.addEventListener("click", () => (done++, draw()));
    all.addEventListener("click", () => ((done = Infinity), draw()));
    again.addEventListener("click", () => ((done = 0), draw()));
    controls(form, fields, (values) => {
      if (chosen && chosen.ranks !== values.ranks) done = 0;
      chosen = values;
      draw();
    });
  }

  function bytes(value) {
    const [unit, size] = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["bytes", 1]].find(([, each]) => value >= each);
    return `${value / size} ${value === 1 ? "byte" : unit}`;
  }

  window.workshop.ring = { held, sends };
  mount("ring-simulator", start);
})();
