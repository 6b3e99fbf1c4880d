// Pictures of points with intervals, as SVG. Series differ in colour, in the shape of their marks and in their dashes.
import {h, number, svg} from './dom.mjs';

const MARKS = [
  (x, y) => svg('circle', {cx: x, cy: y, r: 4.5}),
  (x, y) => svg('rect', {x: x - 4, y: y - 4, width: 8, height: 8}),
  (x, y) => svg('path', {d: `M${x} ${y - 5.5}l5.5 9.5h-11z`}),
  (x, y) => svg('path', {d: `M${x} ${y - 6}l6 6-6 6-6-6z`}),
  (x, y) => svg('path', {d: `M${x} ${y + 5.5}l5.5-9.5h-11z`}),
  (x, y) => svg('path', {d: `M${x - 5} ${y - 2}h3v-3h4v3h3v4h-3v3h-4v-3h-3z`}),
];
const DASHES = ['', '7 4', '2 4', '10 4 2 4'];

function mark(i, x, y, open = false) {
  const element = MARKS[i % MARKS.length](x, y);
  element.setAttribute('class', `mark ${open ? 'open' : ''}`);
  return element;
}
const seriesClass = (i) => `series-${i % 8}`;

let pen = null;
/** The width of a text of a picture. */
function widthOf(text) {
  pen ??= document.createElement('canvas').getContext('2d');
  pen.font = '12px system-ui, sans-serif';  // as in app.css
  return pen.measureText(text).width;
}

function cutTo(text, width) {
  if (widthOf(text) <= width) return text;
  let length = text.length - 1;
  while (length > 1 && widthOf(`${text.slice(0, length)}…`) > width) --length;
  return `${text.slice(0, length)}…`;
}

/** Round numbers that cover low to high, about `count` of them. */
export function ticks(low, high, count = 5) {
  const span = high - low || Math.abs(high) || 1;
  const raw = span / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
  const values = [];
  for (let i = Math.floor(low / step + 1e-9); i * step < high + step * 0.999; ++i) values.push(Number((i * step).toPrecision(12)));
  return values;
}

// The part of a line through these points [x, y] that is not above `most`; the line never falls.
function upTo(most, points) {
  const end = points.findIndex(([, y]) => y > most);
  if (end < 1) return end < 0 ? points : [];
  const [[x0, y0], [x1, y1]] = points.slice(end - 1, end + 1);
  return [...points.slice(0, end), [x0 + (x1 - x0) * (most - y0) / (y1 - y0), most]];
}

/**
 * A picture of series over world sizes. series: [{name, points: [{x, y, low, high, note, open}]}]. ideals: [{name, at}]
 * with functions `at` of x that are drawn as thin lines.
 */
export function linePlot({title, xTitle, yTitle, series, ideals = []}) {
  // Text keeps its size on narrow screens.
  const [width, height] = innerWidth < 700 ? [400, 300] : [640, 380];
  const [left, right, top, bottom] = [96, 16, 16, 48];  // the longest number of the axis is about 66 wide
  const all = series.flatMap(({points}) => points);
  if (all.length === 0) return h('p', {class: 'soft'}, 'No results yet.');
  const xs = [...new Set(all.map(({x}) => x))].sort((a, b) => a - b);
  const logarithmic = xs[0] > 0 && xs[xs.length - 1] / xs[0] > 6;
  const scale = logarithmic ? Math.log2 : (x) => x;
  const [x0, x1] = [scale(xs[0]), scale(xs[xs.length - 1])];
  const inner = width - left - right - 40;
  const X = (x) => left + 20 + (x1 > x0 ? (scale(x) - x0) / (x1 - x0) : 0.5) * inner;
  const highest = Math.max(...all.map(({y, high}) => Math.max(y, high ?? y)));
  const lowest = Math.min(...all.map(({y, low}) => Math.min(y, low ?? y)));
  const steps = ticks(Math.min(0, lowest), highest > 0 ? highest * 1.02 : lowest < 0 ? 0 : 1);
  const [y0, y1] = [steps[0], steps[steps.length - 1]];
  const Y = (y) => height - bottom - (Math.min(Math.max(y, y0), y1) - y0) / (y1 - y0) * (height - top - bottom);
  let taken = -Infinity;  // the right end of the last label

  const parts = [];
  for (const y of steps) {
    parts.push(svg('line', {class: 'rule', x1: left, x2: width - right, y1: Y(y), y2: Y(y)}),
      svg('text', {x: left - 8, y: Y(y) + 4, 'text-anchor': 'end'}, number(y)));
  }
  for (const x of xs) {
    const half = widthOf(String(x)) / 2;
    if (X(x) - half < taken + 8) continue;
    taken = X(x) + half;
    parts.push(svg('line', {class: 'axis', x1: X(x), x2: X(x), y1: height - bottom, y2: height - bottom + 5}),
      svg('text', {x: X(x), y: height - bottom + 20, 'text-anchor': 'middle'}, String(x)));
  }
  parts.push(svg('path', {class: 'axis', d: `M${left} ${top}V${height - bottom}H${width - right}`}),
    svg('text', {x: (left + width - right) / 2, y: height - 8, 'text-anchor': 'middle'}, xTitle),
    svg('text', {x: 14, y: (height - bottom + top) / 2, 'text-anchor': 'middle', transform: `rotate(-90 14 ${(height - bottom + top) / 2})`}, yTitle));
  for (const {name, at} of ideals) {
    const points = upTo(y1, xs.map((x) => [X(x), at(x)]));
    if (points.length > 1) parts.push(svg('path', {class: 'rule', 'stroke-dasharray': '3 3', d: `M${points.map(([x, y]) => `${x} ${Y(y)}`).join('L')}`}, svg('title', null, name)));
  }
  series.forEach(({name, points}, i) => {
    // Intervals at one world size stand side by side.
    const shift = (i - (series.length - 1) / 2) * Math.min(5, 24 / series.length);
    const at = ({x}) => X(x) + shift;
    parts.push(svg('g', {class: seriesClass(i)},
      points.length > 0 && svg('path', {class: 'line', 'stroke-dasharray': DASHES[Math.floor(i / 8) % 4 || i % 4], d: `M${points.map((p) => `${at(p)} ${Y(p.y)}`).join('L')}`}),
      points.map((p) => [
        p.low !== undefined && p.high !== undefined && svg('path', {class: 'line', d: `M${at(p)} ${Y(p.low)}V${Y(p.high)}M${at(p) - 4} ${Y(p.low)}h8M${at(p) - 4} ${Y(p.high)}h8`}),
        svg('g', null, svg('title', null, `${name}: ${p.x}: ${number(p.y)}${p.low === undefined ? '' : ` (${number(p.low)} to ${number(p.high)})`} ${p.note ?? ''}`), mark(i, at(p), Y(p.y), p.open)),
      ])));
  });
  return h('figure', {style: {margin: '0'}},
    svg('svg', {class: 'plot', viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `${title}: ${yTitle} over ${xTitle}; the table has the values`}, parts),
    legendOf(series.map(({name}) => name)));
}

/** The names of series with their marks, or with their lines: `dashes` has the lengths of the dashes and gaps of each. */
export function legendOf(names, dashes = null) {
  const sample = (i) => dashes === null ? svg('svg', {viewBox: '0 0 16 16', 'aria-hidden': 'true'}, mark(i, 8, 8)) :
    svg('svg', {viewBox: '0 0 48 16', 'aria-hidden': 'true', style: {width: '3rem'}}, svg('path', {class: 'line', 'stroke-dasharray': dashes[i % dashes.length].join(' '), d: 'M0 8H48'}));
  return h('ul', {class: 'legend', 'aria-label': 'Series'}, names.map((name, i) => h('li', {class: seriesClass(i)}, sample(i), name)));
}

/** Effects with intervals around 0. rows: [{name, effect, low, high, text}]. */
export function forestPlot(title, rows) {
  const drawn = rows.filter(({effect}) => effect !== undefined);
  if (drawn.length === 0) return '';
  const [width, line, left, right] = innerWidth < 700 ? [400, 26, 150, 32] : [640, 26, 230, 32];
  const height = drawn.length * line + 44;
  const limit = Math.max(0.01, ...drawn.flatMap(({effect, low, high}) => [effect, low ?? 0, high ?? 0].map(Math.abs))) * 1.1;
  const X = (v) => left + (v + limit) / (2 * limit) * (width - left - right);
  const steps = ticks(-limit, limit, 4).filter((v) => Math.abs(v) <= limit);
  return svg('svg', {class: 'plot forest', viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `${title}; the table has the values`},
    steps.map((v) => [svg('line', {class: v === 0 ? 'axis' : 'rule', x1: X(v), x2: X(v), y1: 6, y2: height - 30}),
      svg('text', {x: X(v), y: height - 12, 'text-anchor': 'middle'}, `${number(100 * v, 3)}%`)]),
    drawn.map(({name, effect, low, high}, i) => {
      const y = 6 + line * (i + 0.5);
      return svg('g', {class: 'series-0'}, svg('title', null, name), svg('text', {x: left - 10, y: y + 4, 'text-anchor': 'end'}, cutTo(name, left - 16)),
        low !== undefined && svg('path', {class: 'line', d: `M${X(low)} ${y}H${X(high)}M${X(low)} ${y - 5}v10M${X(high)} ${y - 5}v10`}), mark(0, X(effect), y));
    }));
}
