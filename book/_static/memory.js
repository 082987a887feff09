// Does a model fit the GPUs? The formulas are those of workshop_lib/lessons/zero_and_fsdp/zero_memory.py; recipes, GPUs and models
// come from the library by way of data.js.
"use strict";
(() => {
  const { count, three, parsed, make, controls, mount } = window.workshop;
  const GIB = 2 ** 30;
  const KINDS = ["parameters", "gradients", "optimizer"];
  const SHARDED = [[], ["optimizer"], ["optimizer", "gradients"], KINDS];
  const STAGES = ["stage 0 (DDP)", "stage 1", "stage 2", "stage 3 (FSDP)"];

  function stateBytes(parameters, ranks, stage, recipe) {
    const sizes = [recipe.parameter_bytes, recipe.gradient_bytes, recipe.optimizer_bytes];
    const share = Math.ceil(parameters / ranks);
    return Object.fromEntries(KINDS.map((kind, index) => [kind, sizes[index] * (SHARDED[stage].includes(kind) ? share : parameters)]));
  }

  function activationBytes(model, sequence, batch, valueBytes, checkpointing) {
    const tokens = sequence * batch;
    const one = tokens * model.hidden * (16 * valueBytes + 2);  // FlashAttention: no attention matrix is kept
    const outside = tokens * (model.hidden * (2 * valueBytes + 1) + 4 * model.vocabulary);
    return (checkpointing ? model.layers * tokens * model.hidden * valueBytes + one : model.layers * one) + outside;
  }

  function plan(parameters, ranks, gpuBytes, recipe, activations, offload, reserve = 0.1) {
    const usable = Math.floor(gpuBytes * (1 - reserve));
    const stages = SHARDED.map((sharded, stage) => {
      const states = stateBytes(parameters, ranks, stage, recipe);
      let host = 0;
      if (offload) for (const kind of sharded) [host, states[kind]] = [host + states[kind], 0];
      const onGpu = { ...states, activations };
      const total = Object.values(onGpu).reduce((sum, size) => sum + size, 0);
      return { stage, onGpu, host, total, fits: total <= usable };
    });
    const first = stages.find((at) => at.fits)?.stage ?? null;
    const share = Math.floor((usable - activations) / (recipe.parameter_bytes + recipe.gradient_bytes + recipe.optimizer_bytes));
    const needed = first === null && !offload && share > 0 ? Math.ceil(parameters / share) : null;
    return { ranks, gpuBytes, usable, stages, first, needed };
  }

  function number(bytes) {
    const gib = bytes / GIB;
    if (gib >= 1e9) return gib.toExponential(1);
    return gib >= 100 || Number.isInteger(gib) ? count(gib) : three(gib);
  }
  const size = (bytes) => (bytes < 0.1 * GIB ? `${three(bytes / 2 ** 20)} MiB` : `${number(bytes)} GiB`);

  function answer(plan) {
    const gpu = `${number(plan.gpuBytes)} GiB`;
    if (plan.first !== null) {
      const at = plan.stages[plan.first];
      const start = ["at every stage, even without ZeRO", "from stage 1 on", "from stage 2 on", "at stage 3"][at.stage];
      const host = at.host ? `, and ${size(at.host)} of host memory for each` : "";
      return `It fits ${start}: ${size(at.total).replace(" GiB", "")} of ${gpu} a GPU${host}.`;
    }
    if (plan.needed) {
      const gpus = plan.ranks === 1 ? "1 GPU" : `${count(plan.ranks)} GPUs`;
      return `It does not fit on ${gpus}; with stage 3 it would from ${count(plan.needed)} GPUs on.`;
    }
    return `It fits on no number of GPUs: the activations, which no stage divides, take ${size(plan.stages[0].onGpu.activations)} alone, and ${number(plan.usable)} of ${gpu} are usable.`;
  }

  function bars(plan) {
    const totals = plan.stages.map((at) => at.total), least = Math.max(plan.gpuBytes, Math.min(...totals));
    const longest = Math.max(plan.gpuBytes, Math.min(2.2 * least, Math.max(...totals)));
    const percent = (bytes) => `${Math.min(100, (100 * bytes) / longest)}%`;
    return plan.stages.map((at) => {
      const parts = Object.entries(at.onGpu).map(([kind, bytes]) => make("i", { class: kind, style: `width: ${(100 * bytes) / Math.max(longest, at.total)}%` }));
      const mark = make("b", { style: `left: ${percent(plan.gpuBytes)}` });
      const cut = at.total > longest ? ", drawn shorter than it is" : "";
      const words = `${STAGES[at.stage]}: ${size(at.total)}, ${at.fits ? "fits" : "does not fit"}${cut}`;
      return make("div", { class: "workshop-bar" }, make("span", {}, words), make("div", { "aria-hidden": "true" }, ...parts, mark));
    });
  }

  function start(place) {
    const { models, recipes, gpus } = window.workshopData;
    const form = make("form", { class: "workshop-controls" }), sentence = make("p", { class: "workshop-answer", "aria-live": "polite" });
    const shown = make("div");
    place.append(form, sentence, shown);
    const fields = {
      model: { label: "model", options: [...Object.keys(models), "other"], value: "Llama 7B" },
      parameters: { label: "parameters (for “other”)", value: "7B" },
      recipe: { label: "recipe", options: Object.keys(recipes), value: "bf16, Adam" },
      gpu: { label: "kind of GPU", options: Object.keys(gpus), value: "A100, 80 GB" },
      ranks: { label: "GPUs (ranks)", min: 0, max: 12, value: 3, show: (power) => count(2 ** power) },
      sequence: { label: "sequence length", min: 7, max: 17, value: 11, show: (power) => count(2 ** power) },
      batch: { label: "batch per GPU", min: 1, max: 64, value: 1, show: count },
      checkpointing: { label: "activation checkpointing", value: false },
      offload: { label: "offload to host memory", value: false },
    };
    controls(form, fields, (chosen, inputs) => {
      const model = models[chosen.model] ?? {}, shape = model.shape, recipe = recipes[chosen.recipe];
      inputs.parameters.disabled = Boolean(model.parameters);
      for (const name of ["sequence", "batch", "checkpointing"]) inputs[name].disabled = !shape;
      const parameters = model.parameters ?? parsed(chosen.parameters);
      if (!(parameters >= 1 && parameters <= 1e15)) {
        sentence.textContent = `parameters is “${chosen.parameters}”: give a number such as 7.5B, 125M or 20434.`;
        return shown.replaceChildren();
      }
      const activations = shape ? activationBytes(shape, 2 ** chosen.sequence, chosen.batch, recipe.parameter_bytes, chosen.checkpointing) : 0;
      const made = plan(parameters, 2 ** chosen.ranks, gpus[chosen.gpu], recipe, activations, chosen.offload);
      sentence.textContent = answer(made);
      const legend = [...KINDS, "activations"].map((kind) => make("span", {}, make("i", { class: kind }), kind));
      const limit = make("span", {}, make("b"), `the GPU: ${number(gpus[chosen.gpu])} GiB, less 10% reserve`);
      const counted = shape ? "" : " Activations are not counted for this model.";
      const size = make("p", { class: "workshop-note" }, `${count(parameters)} parameters on ${count(2 ** chosen.ranks)} GPUs.${counted}`);
      shown.replaceChildren(...bars(made), make("p", { class: "workshop-legend" }, ...legend, limit), size);
    });
  }

  window.workshop.memory = { stateBytes, activationBytes, plan, answer };
  mount("memory-calculator", start);
})();
