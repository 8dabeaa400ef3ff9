// A worker: what takes too long for the page, one job a message.
import { duplicatesOf, evenly, neighboursOf } from "./nearest.js";
import { coordinatesOf, groupsOf, labelsOf } from "./plane.js";

const AXES = 8; // by which pairs are told apart before they are multiplied

const JOBS = {
  components: ({ vectors, width }) => coordinatesOf(vectors, width, 2),
  groups({ vectors, width, texts, groups }) {
    const member = groupsOf(vectors, width, groups);
    return { member, names: labelsOf(texts, member, groups) };
  },
  duplicates: ({ vectors, width, threshold, most }) => duplicatesOf(vectors, width, coordinatesOf(vectors, width, AXES), AXES, threshold, most),
  neighbours({ vectors, width, asked, k }) {
    const rows = evenly(vectors.length / width, asked);
    return { rows, k, ...neighboursOf(vectors, width, rows, k) };
  },
};

onmessage = ({ data: { job, ...given } }) => postMessage(JOBS[job](given));
