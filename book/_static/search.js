// Under each page that the search finds: the sections with the words, and an excerpt of each. sections.js has all texts.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const SECTIONS_SHOWN = 3, BEFORE = 60, LONGEST = 220;
  const asked = (new URLSearchParams(window.location.search).get("q") ?? "").toLowerCase().split(/[^\p{L}\p{N}_-]+/u);
  const stemmer = new Stemmer();  // as the search itself compares words
  const pages = new Set();
  const words = asked.filter((word) => word).map((word) => stemmer.stemWord(word));

  // How often the words are in a section: the rarer of them count, and a heading counts more.
  function score([, title, text]) {
    const count = (content, word) => content.toLowerCase().split(word).length - 1;
    return Math.min(...words.map((word) => 10 * count(title, word) + count(text, word)));
  }

  // The text around the first of the words, with each of them marked.
  function excerpt(text) {
    const lower = text.toLowerCase(), places = words.map((word) => lower.indexOf(word)).filter((at) => at >= 0);
    const begin = places.length ? Math.max(0, Math.min(...places) - BEFORE) : 0;
    const from = begin && begin + text.slice(begin).search(/\s/) + 1;
    const cut = from + LONGEST < text.length, end = cut ? text.lastIndexOf(" ", from + LONGEST) : text.length;
    const shown = text.slice(from, end), paragraph = document.createElement("p");
    const letters = words.map((word) => word.replace(/[^\p{L}\p{N}]/gu, "\\$&"));
    const parts = shown.split(new RegExp(`((?:${letters.join("|")})[\\p{L}\\p{N}]*)`, "iu"));
    paragraph.append(from ? "… " : "", ...parts.map((part, index) => {
      if (index % 2 === 0) return part;
      const mark = document.createElement("mark");
      mark.textContent = part;
      return mark;
    }), cut ? " …" : "");
    return paragraph;
  }

  function describe(item) {
    const link = item.querySelector("a");
    if (!link || item.dataset.described) return;
    item.dataset.described = "yes";
    const page = link.getAttribute("href").replace(/(\.html)?([?#].*)?$/, "");
    item.hidden = pages.has(page);  // the search lists a page, its sections and its terms one by one
    pages.add(page);
    const found = (window.workshopSections[page] ?? []).map((section) => [score(section), section]).filter(([points]) => points > 0);
    found.sort(([a], [b]) => b - a);
    for (const [, [id, title, text]] of found.slice(0, SECTIONS_SHOWN)) {
      const section = document.createElement("a");
      section.href = `${page}.html#${id}`;
      section.textContent = title;
      const block = document.createElement("div");
      block.className = "workshop-found";
      block.append(section, excerpt(text));
      item.append(block);
    }
  }

  const results = document.getElementById("search-results");
  const watch = new MutationObserver(() => results.querySelectorAll("ul.search > li").forEach(describe));
  if (results && words.length) watch.observe(results, { childList: true, subtree: true });
});
