// Predictions: a slider for each question, and the guess beside the measured value. Without this script, the page still has
// the question as text, and the measured value under "Reveal".
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const number = (value) => (Math.abs(value) < 1000 ? String(Number(value.toPrecision(3))) : Math.round(value).toLocaleString("en-US"));

  function make(tag, attributes = {}, ...content) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...content);
    return element;
  }

  // The guess as a row under the measured value, with the same axis.
  function showGuess(answer, guess, unit) {
    const from = Number(answer.dataset.from), to = Number(answer.dataset.to);
    const bar = make("i", { class: "guess", style: `width: ${(100 * (guess - from)) / (to - from)}%` });
    const row = make("tr", {}, make("th", {}, "your guess"), make("td", {}, bar), make("td", {}, `${number(guess)} ${unit}`));
    answer.querySelector("table").append(row);
  }

  for (const question of document.querySelectorAll(".workshop-guess")) {
    const { unit } = question.dataset, low = Number(question.dataset.low), high = Number(question.dataset.high);
    const answer = document.getElementById(question.dataset.answer), asked = question.querySelector("p").textContent;
    const step = 10 ** Math.floor(Math.log10((high - low) / 50));
    const slider = make("input", { type: "range", min: low, max: high, step, value: low, "aria-label": asked });
    const shown = make("output", {}, "move the slider"), button = make("button", { type: "button", disabled: "" }, "Commit");
    slider.addEventListener("input", () => {
      shown.textContent = `${number(Number(slider.value))} ${unit}`;
      button.disabled = false;
    });
    button.addEventListener("click", () => {
      if (slider.disabled) return;
      slider.disabled = true;
      button.textContent = "Committed ✓";  // not disabled, because a disabled button loses the keyboard's focus
      showGuess(answer, Number(slider.value), unit);
      const reveal = make("a", { href: `#${answer.id}` }, "Reveal what we measured");
      reveal.addEventListener("click", () => (answer.open = true));
      question.append(make("p", { role: "status" }, reveal, ", or read on to where it is measured."));
    });
    question.append(make("div", {}, slider, shown, button));
  }
});
