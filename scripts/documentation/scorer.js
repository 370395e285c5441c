// How the search ranks: Sphinx's own weights, but a title that is the words asked for comes before pages that only have
// them among others.
var Scorer = {
  score: ([, , , , score, , kind]) => score + (kind === "title" ? 5 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
