// Shows on the site's search page what `search.js` finds. Asks no server, so the page also works from a file.

const stemmer = new EnglishStemmer();
const site = new SiteSearch(SEARCH_DATA, (word) => stemmer.stemWord(word));
const root = document.documentElement.dataset.content_root;
const box = document.getElementById("site-search");
const list = document.getElementById("site-search-results");
const count = document.getElementById("site-search-count");

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  return made;
}

function shown({ name, title, sections }) {
  const item = element("li");
  const page = `${root}${name}.html`;
  item.append(element("a", title, { href: page, class: "site-search-page" }));
  for (const { heading, anchor, excerpt } of sections) {
    const part = element("div", "", { class: "site-search-section" });
    if (anchor) part.append(element("a", heading, { href: `${page}#${anchor}` }));
    const words = element("p");
    words.append(...excerpt.map(([text, asked]) => (asked ? element("mark", text) : text)));
    part.append(words);
    item.append(part);
  }
  return item;
}

function search() {
  const question = box.value.trim();
  const found = question ? site.find(question) : [];
  list.replaceChildren(...found.map(shown));
  count.textContent = found.length
    ? `${found.length === 10 ? "The ten best pages" : `${found.length} pages`}, best first`
    : question
      ? "No page has these words. Try other words, or look into the glossary or the list of errors."
      : "Type a question, an error message, a setting or a command.";
  document.title = question ? `${question} - search` : "Search";
}

box.value = new URLSearchParams(location.search).get("q") || "";
box.addEventListener("input", () => {
  search();
  const address = new URL(location);
  address.searchParams.set("q", box.value);
  try {
    history.replaceState(null, "", address);
  } catch {
    // some browsers allow no changed address for a file
  }
});
search();
