// A classic worker, because the library of UMAP is no module: places in the plane where near vectors stay near.
importScripts("../../vendor/umap.js");

const NEIGHBOURS = 15;

onmessage = async ({ data: { vectors, width } }) => {
  const { evenly, neighboursOf, progress } = await import("./nearest.js");
  const { coordinatesOf, numbers } = await import("./plane.js");
  const count = vectors.length / width;
  const k = Math.min(NEIGHBOURS, count) - 1;
  const tell = progress();
  const { neighbours, scores } = neighboursOf(vectors, width, evenly(count, count), k, (share) => tell(share / 2));
  const rows = (own, values, made) => Array.from({ length: count }, (_, row) => [own(row), ...Array.from(values.subarray(row * k, (row + 1) * k), made)]);
  const umap = new UMAP.UMAP({ nComponents: 2, nNeighbors: k + 1, minDist: 0.15, random: numbers(3) });
  umap.setPrecomputedKNN(rows((row) => row, neighbours, Number), rows(() => 0, scores, (score) => Math.max(0, 1 - score)));
  // Only the number of rows counts where the neighbours are given.
  const steps = umap.initializeFit(Array.from({ length: count }, () => [0]));
  for (let step = 0; step < steps; step++) umap.step(), tell(0.5 + step / steps / 2);
  const points = Float32Array.from(umap.getEmbedding().flat());
  postMessage({ data: coordinatesOf(points, 2, 2) }); // turned, so that the map is wider than high
};
