// The order in which like texts lie beside each other, and where groups of them begin.

// Clusters by mean similarity (UPGMA): {order, starts}. order: the numbers of the texts, with each cluster's texts together and the ends
// of two clusters that are joined turned to each other; starts: places in the order where a group begins.
export function clustered(matrix, count) {
  const near = Array.from({ length: count }, (_, row) => Float64Array.from({ length: count }, (_, column) => matrix[row * count + column]));
  let alive = Array.from({ length: count }, (_, index) => index);
  const leaves = alive.map((index) => [index]);
  const joins = [];
  while (alive.length > 1) {
    let best = [-Infinity, 0, 0];
    for (let a = 0; a < alive.length; a++)
      for (let b = a + 1; b < alive.length; b++) if (near[alive[a]][alive[b]] > best[0]) best = [near[alive[a]][alive[b]], alive[a], alive[b]];
    const [similarity, one, other] = best;
    const [sizes, joined] = [[leaves[one].length, leaves[other].length], turned(leaves[one], leaves[other], matrix, count)];
    joins.push({ similarity, parts: [leaves[one], leaves[other]] });
    for (const each of alive) near[one][each] = near[each][one] = (sizes[0] * near[one][each] + sizes[1] * near[other][each]) / (sizes[0] + sizes[1]);
    leaves[one] = joined;
    alive = alive.filter((each) => each !== other);
  }
  const order = count ? leaves[alive[0]] : [];
  return { order, starts: startsOf(order, joins) };
}

// Two orders as one: each may be turned around so that the texts that meet are most alike.
function turned(one, other, matrix, count) {
  const choices = [[one, other], [one, [...other].reverse()], [[...one].reverse(), other], [[...one].reverse(), [...other].reverse()]];
  const meeting = ([first, second]) => matrix[first.at(-1) * count + second[0]];
  return choices.reduce((best, each) => (meeting(each) > meeting(best) ? each : best)).flat();
}

// Groups are what is left when the last joins are undone: of at most eight, where the next join is least like the one before.
function startsOf(order, joins) {
  const last = joins.slice(-8).reverse(); // the least similar first
  if (order.length < 4 || last.length < 2) return [0];
  let cut = 0;
  for (let index = 0; index + 1 < last.length; index++)
    if (last[index + 1].similarity - last[index].similarity > last[cut + 1].similarity - last[cut].similarity) cut = index;
  const groups = new Map(order.map((text) => [text, 0]));
  let number = 0;
  for (const { parts } of last.slice(0, cut + 1).reverse()) {
    number++;
    for (const text of parts[1]) groups.set(text, `${groups.get(text)} ${number}`);
  }
  return order.map((text, place) => (place && groups.get(text) === groups.get(order[place - 1]) ? -1 : place)).filter((place) => place >= 0);
}
