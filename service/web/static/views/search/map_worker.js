// A worker: what takes too long for the page, one job a message.
import { duplicatesOf, evenly, neighboursOf, progress } from "./nearest.js";
import { coordinatesOf, groupsOf, labelsOf } from "./plane.js";

const AXES = 32; // by which pairs are told apart before they are multiplied: of lines of documentation 8 leave a tenth of the pairs, 32 one in 1,600

// Each returns its result; on the way it may call tell(share done, function that returns the result so far).
const JOBS = {
  components: ({ vectors, width }) => coordinatesOf(vectors, width, 2),
  groups({ vectors, width, texts, groups }) {
    const member = groupsOf(vectors, width, groups);
    return { member, names: labelsOf(texts, member, groups) };
  },
  duplicates({ vectors, width, threshold, most }, tell) {
    tell(0); // the axes take seconds
    return duplicatesOf(vectors, width, coordinatesOf(vectors, width, AXES), AXES, threshold, most, tell);
  },
  neighbours({ vectors, width, asked, k }, tell) {
    const rows = evenly(vectors.length / width, asked);
    return { rows, k, ...neighboursOf(vectors, width, rows, k, tell) };
  },
};

onmessage = ({ data: { job, ...given } }) => postMessage({ progress: 1, data: JOBS[job](given, progress()) });
