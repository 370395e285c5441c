// Ranks the sections of the site for what somebody asks. Knows no browser: the page of the search and a test call it.
//
// A question's words and the words of all sections are cut, stemmed and widened by the same function (`terms`). A
// group of synonyms is one more term, which each of its phrases adds; so "backlog" finds what is written about "lag".
// Sections are scored by BM25 over title, heading, search words and text. A title, a heading or a search word whose
// words are all asked for counts once more. The questions that users have asked about a page are one more text, in which
// pairs of words count too, stop words among them. A page is as good as its best sections and its questions.

const STOP_WORDS = new Set(
  `a about after all also am an and any are as at be been before being both but by can cannot cant could did do
  does doesnt doing don dont each for from get gets getting give go goes good got had has have having he her
  here his how however i if in into is isnt it its just let like ll make me mine more most my myself need nor
  now of off on once one only or other our out own please possible re same should so some such t than that
  the their them then there these they thing this those through to too until up use used using ve very want was
  way we were what whats when where whether which while who whom why will with wont work works would you
  your`.split(/\s+/),
);
// Forms of a word that a stemmer does not know: "lost messages" is about losing messages.
const FORMS = new Map(
  `began begun begin | built build | chose chosen choose | consumption consume | deletion delete | delivery deliver |
  deliveries deliver | failure fail | failures fail | grew grown grow | held hold | kept keep | loss losses lost lose |
  production produce | ran run | retention retain | rose risen rise | sent send | subscription subscribe |
  subscriptions subscribe | threw thrown throw | woke wake | wrote written write`
    .split("|")
    .flatMap((line) => {
      const words = line.trim().split(/\s+/);
      return words.slice(0, -1).map((form) => [form, words.at(-1)]);
    }),
);
const WEIGHTS = { title: 2, heading: 3, words: 3 }; // what a term counts there, in occurrences in the text
const PHRASE = 4; // what a title, a heading or a search word counts that is asked for as a whole
const SATURATION = 3; // BM25's k1
const LENGTH = 0.4; // BM25's b
const COVERAGE = 0.4; // how much it counts that all terms are found: the exponent of their share
const HAS_SYNONYMS = 0.5; // what a word counts if it has synonyms, which count as one more term
const SYNONYMS = 0.8; // what a group of synonyms counts
const NUMBER = 0.5; // what a number counts
const TYPO = 0.7; // what a misspelled word counts
const QUESTIONS = 1.5; // what the questions of a page count, beside its best section
const PAIR = 0.5; // what two neighbouring words of a question count
const LONGEST_WORD = 30; // of a misspelled one: trying forms of a word takes time with the square of its length
const MOST_LETTERS = 4000; // of a question: a traceback that somebody pasted

// Texts as counts of terms, scored by BM25.
class Index {
  constructor() {
    this.postings = new Map(); // term -> [[text, weighted count]]
    this.lengths = [];
    this.length = 0; // of all texts
  }

  // Add a text and return its number.
  add(counts, length) {
    const at = this.lengths.push(length) - 1;
    this.length += length;
    counts.forEach((count, term) => {
      if (!this.postings.has(term)) this.postings.set(term, []);
      this.postings.get(term).push([at, count]);
    });
    return at;
  }

  rarity(term) {
    const count = this.postings.get(term)?.length || 0;
    return Math.log(1 + (this.lengths.length - count + 0.5) / (count + 0.5));
  }

  // The share of its worth, times SATURATION + 1 at most, that a term has in each text, as [text, share].
  shares(term) {
    const average = this.length / this.lengths.length;
    return (this.postings.get(term) || []).map(([at, count]) => {
      const norm = 1 - LENGTH + (LENGTH * this.lengths[at]) / average;
      return [at, (count * (SATURATION + 1)) / (count + SATURATION * norm)];
    });
  }
}

class SiteSearch {
  // `pages` as `sections.py` makes them, `synonyms` a list of lists of phrases, `chinese` translations by term, `kinds`
  // weights by the beginning of a page's name, `questions` by the name of the page that answers them, `stem` a function.
  constructor({ pages, synonyms, chinese, kinds, questions }, stem) {
    this.stems = new Map();
    this.stemWord = stem;
    this.chinese = chinese;
    const longestFirst = Object.keys(chinese).sort((a, b) => b.length - a.length);
    this.chineseTerms = new RegExp([...longestFirst, "\\p{Script=Han}"].join("|"), "gu");
    this.spellings = new Set(); // words as written
    this.synonyms = this.readSynonyms(synonyms);
    synonyms.flat().forEach((text) => this.split(text).forEach((word) => this.spellings.add(word)));
    this.pages = pages.map(({ name, title }) => ({ name, title, weight: weightOf(name, kinds) }));
    this.sections = [];
    this.index = new Index(); // of sections
    pages.forEach((page, at) => page.sections.forEach((section) => this.addSection(at, page.title, section)));
    this.questions = new Index(); // of pages
    this.pages.forEach(({ name }) => this.addQuestions(questions[name] || []));
  }

  addQuestions(questions) {
    const counts = new Map();
    for (const question of questions) {
      this.split(question).forEach((word) => this.spellings.add(word));
      this.questionTerms(question).forEach((term) => counts.set(term, (counts.get(term) || 0) + 1));
    }
    this.questions.add(counts, questions.length);
  }

  addSection(page, title, [heading, anchor, words, lines]) {
    const counts = new Map();
    const add = (text, weight) => {
      const found = this.terms(text);
      found.forEach((term) => counts.set(term, (counts.get(term) || 0) + weight));
      return found.length;
    };
    let length = lines.reduce((sum, line) => sum + add(line, 1), 0);
    for (const text of [title, heading, ...words, ...lines]) {
      this.split(text).forEach((word) => this.spellings.add(word));
    }
    add(title, WEIGHTS.title);
    if (anchor) add(heading, WEIGHTS.heading);
    words.forEach((phrase) => (length += add(phrase, WEIGHTS.words)));
    this.index.add(counts, length);
    const phrases = [title, heading, ...words].map((text, n) => {
      const all = this.words(text);
      const content = all.filter((word) => !this.stopStems.has(word));
      return { content, share: n < 2 ? 1 : content.length / (all.length || 1) };
    });
    this.sections.push({ page, heading, anchor, lines, phrases });
  }

  // The pages found, best first, each with its best sections and a line of each.
  find(question, most = 10) {
    const asked = this.askedTerms(question);
    const terms = new Set(asked.flatMap(({ forms }) => forms));
    return this.rank(question, asked).slice(0, most).map(({ name, title, sections }) => ({
      name,
      title,
      sections: sections.map(({ heading, anchor, lines }) => ({
        heading,
        anchor,
        excerpt: this.excerpt(lines, terms),
      })),
    }));
  }

  // The pages found, best first, each with its best sections.
  rank(question, asked = this.askedTerms(question)) {
    const total = asked.reduce((sum, { rarity }) => sum + rarity, 0);
    const scores = this.sections.map(() => ({ score: 0, matched: 0 }));
    for (const { forms, rarity } of asked) {
      const best = new Map(); // a misspelled word has several forms: the best one counts in each section
      for (const form of forms) {
        for (const [at, share] of this.index.shares(form)) best.set(at, Math.max(rarity * share, best.get(at) || 0));
      }
      best.forEach((score, at) => {
        scores[at].score += score;
        scores[at].matched += rarity;
      });
    }
    const worths = new Map(asked.flatMap(({ forms, rarity }) => forms.map((form) => [form, rarity])));
    const phraseWorth = this.phraseWorth(worths);
    const found = new Map();
    scores.forEach(({ score, matched }, at) => {
      if (!score) return;
      const section = this.sections[at];
      const coverage = (matched / total) ** COVERAGE;
      const worth = (score + PHRASE * phraseWorth(section)) * coverage * this.pages[section.page].weight;
      if (!found.has(section.page)) found.set(section.page, []);
      found.get(section.page).push({ section, score: worth });
    });
    const likeness = this.likeness(question);
    likeness.forEach((_, page) => {
      const head = () => this.sections.find((section) => section.page === page);
      if (!found.has(page)) found.set(page, [{ section: head(), score: 0 }]);
    });
    const ranked = [...found].map(([page, sections]) => {
      sections.sort((a, b) => b.score - a.score);
      const like = QUESTIONS * (likeness.get(page) || 0);
      const score = sections[0].score + 0.15 * (sections[1]?.score || 0) + like;
      const shown = sections.filter((each, n) => n === 0 || (n < 3 && each.score > 0.5 * sections[0].score));
      const { name, title } = this.pages[page];
      return { name, title, score, sections: shown.map(({ section }) => section) };
    });
    return ranked.sort((a, b) => b.score - a.score || (a.title < b.title ? -1 : 1));
  }

  // By page how much its questions are like this one.
  likeness(question) {
    const found = new Map();
    for (const term of this.questionTerms(this.inEnglish(question.slice(0, MOST_LETTERS)))) {
      const kind = term.includes(" ") ? PAIR : this.kindOf(term);
      for (const [page, share] of this.questions.shares(term)) {
        const worth = kind * this.questions.rarity(term) * share * this.pages[page].weight;
        found.set(page, (found.get(page) || 0) + worth);
      }
    }
    return found;
  }

  // The terms of a question, and each two neighbouring words: "start again" is more than "start".
  questionTerms(text) {
    const words = this.words(text);
    const pairs = words.slice(1).map((word, n) => `${words[n]} ${word}`);
    return new Set([...this.terms(text).filter((term) => !this.stopStems.has(term)), ...pairs]);
  }

  // A function that returns the worth of the best title, heading or search word of a section whose words are all asked
  // for, or have synonyms that are. Stop words lower its worth.
  phraseWorth(worths) {
    const known = new Map();
    const worthOf = (word) => {
      if (!known.has(word)) {
        const ofConcepts = this.concepts(word).map((term) => worths.get(term) || 0);
        known.set(word, worths.get(word) || Math.max(0, ...ofConcepts));
      }
      return known.get(word);
    };
    const sum = (total, word) => total + worthOf(word);
    const worth = ({ content, share }) => (content.every(worthOf) ? share * content.reduce(sum, 0) : 0);
    return ({ phrases }) => Math.max(0, ...phrases.map(worth));
  }

  // The groups of synonyms that a word alone belongs to.
  concepts(word) {
    return (this.synonyms.get(word) || []).filter(([phrase]) => phrase.length === 1).map(([, concept]) => concept);
  }

  // The terms of a question that are in the index, with what each is worth.
  askedTerms(question) {
    const text = this.inEnglish(question.slice(0, MOST_LETTERS));
    const all = [...new Set(this.terms(text))];
    const kept = all.filter((term) => !this.stopStems.has(term));
    const known = (kept.length ? kept : all)
      .filter((term) => this.index.postings.has(term))
      .map((term) => ({ forms: [term], rarity: this.kindOf(term) * this.index.rarity(term) }));
    const unknown = new Set(this.split(text).filter((word) => !this.isKnown(this.stem(word))));
    const meant = [...unknown].map((word) => this.meant(word)).filter((forms) => forms.length);
    const rarest = (forms) => Math.max(...forms.map((form) => this.index.rarity(form)));
    return [...known, ...meant.map((forms) => ({ forms, rarity: TYPO * rarest(forms) }))];
  }

  // Chinese has no spaces: at each place the longest known term is translated, and a character outside of all terms dropped.
  inEnglish(question) {
    return question.replace(this.chineseTerms, (term) => ` ${this.chinese[term] || ""} `);
  }

  kindOf(term) {
    if (term.startsWith("=")) return SYNONYMS;
    if (/^\d+$/.test(term)) return NUMBER;
    return this.concepts(term).length ? HAS_SYNONYMS : 1;
  }

  isKnown(stem) {
    return this.index.postings.has(stem) || this.stopStems.has(stem) || this.synonyms.has(stem);
  }

  // The terms of an unknown word: of two words written as one, of words that it begins, or of the words that differ
  // from it by the fewest letters.
  meant(word) {
    if (word.length < 4 || word.length > LONGEST_WORD || /^\d/.test(word)) return [];
    const known = (text) => this.terms(text).filter((term) => this.index.postings.has(term));
    for (let cut = 3; cut <= word.length - 3; cut++) {
      const [first, second] = [word.slice(0, cut), word.slice(cut)];
      if (this.spellings.has(first) && this.spellings.has(second)) return known(`${first} ${second}`);
    }
    const begun = [...this.spellings].filter((spelling) => spelling.startsWith(word));
    if (begun.length) return known(begun.join(" "));
    const allowed = word.length < 8 ? 1 : 2;
    let [least, nearest] = [allowed, []];
    for (const spelling of this.spellings) {
      if (Math.abs(spelling.length - word.length) > allowed || spelling[0] !== word[0]) continue;
      const distance = wrongLetters(word, spelling, allowed);
      if (distance < least) [least, nearest] = [distance, []];
      if (distance === least) nearest.push(spelling);
    }
    return known(nearest.join(" "));
  }

  // The sentence or row with the rarest of the asked terms, as [text, is asked for] pieces.
  excerpt(lines, terms) {
    let best = null;
    for (const line of lines) {
      for (const sentence of line.split(/(?<=[.!?:]) +(?=[A-Z`])/)) {
        const found = new Set(this.terms(sentence).filter((term) => terms.has(term)));
        const says = /\S\s+\S/.test(sentence) ? 1 : 0.3; // one word is the beginning of some code
        const worth = says * [...found].reduce((sum, term) => sum + this.index.rarity(term), 0);
        if (!best || worth > best.worth) best = { worth, sentence };
      }
    }
    return best ? this.marked(cutAround(best.sentence, (word) => this.isAsked(word, terms)), terms) : [];
  }

  marked(text, terms) {
    return text
      .split(/([\p{L}\p{N}_]+)/u)
      .filter((piece) => piece)
      .map((piece) => [piece, this.isAsked(piece, terms)]);
  }

  isAsked(word, terms) {
    return this.terms(word).some((term) => terms.has(term));
  }

  // The stemmed words of a text with their compounds, and a term for each group of synonyms that has a phrase in it.
  terms(text) {
    const words = this.words(text);
    const found = [...words];
    words.forEach((word, at) => {
      for (const [phrase, concept] of this.synonyms.get(word) || []) {
        if (phrase.every((each, n) => words[at + n] === each)) found.push(concept);
      }
    });
    return [...found, ...this.compounds(text)];
  }

  words(text) {
    return this.split(text).map((word) => this.stem(word));
  }

  split(text) {
    const parts = text.replace(/([\p{Ll}\d])(\p{Lu})|(\p{Lu})(\p{Lu}\p{Ll})/gu, "$1$3 $2$4").toLowerCase();
    return parts.replace(/['’](s|t)\b/g, "$1").match(/[\p{L}\p{N}]+/gu) || [];
  }

  // `maxRetries`, `max_retries`, `max-retries` and `max.retries` are also one word.
  compounds(text) {
    const found = text.match(/[\p{L}\p{N}]+(?:[._-][\p{L}\p{N}]+)+|\p{L}*\p{Ll}\p{Lu}[\p{L}\p{N}]*/gu) || [];
    return found.map((word) => word.replace(/[._-]/g, "").toLowerCase());
  }

  stem(word) {
    if (!this.stems.has(word)) this.stems.set(word, this.stemWord(FORMS.get(word) || word));
    return this.stems.get(word);
  }

  readSynonyms(groups) {
    this.stopStems = new Set([...STOP_WORDS].map((word) => this.stem(word)));
    const byFirst = new Map();
    groups.forEach((group, at) => {
      for (const text of group) {
        const phrase = this.words(text);
        if (!byFirst.has(phrase[0])) byFirst.set(phrase[0], []);
        byFirst.get(phrase[0]).push([phrase, `=${at}`]);
      }
    });
    return byFirst;
  }
}

function weightOf(name, kinds) {
  const kind = kinds.find(([beginning]) => name.startsWith(beginning));
  return kind ? kind[1] : 1;
}

// The part of a long sentence around its first asked word, at most 220 letters.
function cutAround(text, isAsked) {
  if (text.length <= 220) return text;
  const words = text.split(/(?<=\s)/);
  let start = words.findIndex((word) => isAsked(word));
  start = Math.max(0, start - 8);
  let cut = "";
  for (const word of words.slice(start)) {
    if (cut.length + word.length > 210) break;
    cut += word;
  }
  return `${start ? "… " : ""}${cut.trim()} …`;
}

// Letters added, left out, changed or swapped between two words; more than `allowed` is any larger number.
function wrongLetters(a, b, allowed) {
  let [before, last] = [null, [...Array(b.length + 1).keys()]];
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      row[j] = Math.min(row[j - 1] + 1, last[j] + 1, last[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1));
      const swapped = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      if (swapped) row[j] = Math.min(row[j], before[j - 2] + 1);
    }
    if (Math.min(...row) > allowed) return allowed + 1;
    [before, last] = [last, row];
  }
  return last[b.length];
}
