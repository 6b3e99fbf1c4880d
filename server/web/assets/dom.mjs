// Elements and texts that all pages use.

/** Returns an element. Attributes: `on` has listeners, `style` properties; false and null leave an attribute out. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Returns an element of SVG. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name === 'on') {
      for (const [type, listener] of Object.entries(value)) element.addEventListener(type, listener);
    } else if (name === 'style') {
      // The policy of the page forbids style attributes, not properties.
      for (const [property, text] of Object.entries(value)) element.style.setProperty(property, text);
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value === true ? '' : value);
    }
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/**
 * Makes the content of an element equal to `children`. Elements that are there already are changed, not replaced, so that
 * the focus, a click in progress and the scrolled position of a table remain. They keep their listeners. A link to another
 * address is another element, so that a click never opens what it did not begin on.
 */
export function renew(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement.getAttribute('href') : null;
  adapt(element, h('div', null, ...children));
  if (focused === null || element.contains(document.activeElement)) return;
  [...element.querySelectorAll('a')].find((link) => link.getAttribute('href') === focused)?.focus();
}

function adapt(element, wanted) {
  const nodes = [...wanted.childNodes];
  while (element.childNodes.length > nodes.length) element.lastChild.remove();
  nodes.forEach((node, i) => {
    const present = element.childNodes[i];
    if (present === undefined) return element.append(node);
    if (present.isEqualNode(node)) return;
    if (present.nodeType === Node.TEXT_NODE && node.nodeType === Node.TEXT_NODE) {
      present.data = node.data;
      return;
    }
    const same = present.nodeName === node.nodeName && present.nodeType === Node.ELEMENT_NODE && present.getAttribute('href') === node.getAttribute('href');
    if (!same) return present.replaceWith(node);
    for (const name of present.getAttributeNames()) if (!node.hasAttribute(name)) present.removeAttribute(name);
    for (const name of node.getAttributeNames()) {
      // The policy of the page forbids to set style attributes.
      if (name === 'style') present.style.cssText = node.style.cssText;
      else present.setAttribute(name, node.getAttribute(name));
    }
    adapt(present, node);
  });
}

export const lastPart = (name) => name.slice(name.lastIndexOf('/') + 1);

/** Shapes on 16 x 16, one for each state, so that colour is not needed to tell them apart. */
const SHAPES = {
  QUEUED: {outline: 'M2 2h12v12h-12z'},
  RUNNING: {solid: 'M1 1h14v14h-14z', cut: 'M6 4l6 4-6 4z'},
  SUCCEEDED: {solid: 'M1 1h14v14h-14z', cutLine: 'M4 8.5l3 3 5-7'},
  FAILED: {solid: 'M1 1h14v14h-14z', cutLine: 'M4.5 4.5l7 7m0-7l-7 7'},
  CANCELLED: {outline: 'M2 2h12v12h-12z', line: 'M3 13L13 3'},
  SKIPPED: {outline: 'M2 2h12v12h-12z', line: 'M5 8h6'},
};
export const RUN_STATES = Object.keys(SHAPES);

/** The symbol of a state. */
export function symbol(state) {
  const shape = SHAPES[state] ?? SHAPES.QUEUED;
  const colour = `var(--${SHAPES[state] ? state : 'QUEUED'})`;
  const path = (d, fillColour, stroke) => svg('path', {d, style: {fill: fillColour, stroke, 'stroke-width': '1.8'}});
  return svg('svg', {viewBox: '0 0 16 16', 'aria-hidden': 'true'},
    shape.solid && path(shape.solid, colour, 'none'),
    shape.outline && path(shape.outline, 'none', colour),
    shape.cut && path(shape.cut, 'var(--back)', 'none'),
    shape.cutLine && path(shape.cutLine, 'none', 'var(--back)'),
    shape.line && path(shape.line, 'none', colour));
}

/** Returns a function that draws the symbol of a state on a canvas at (x, y). */
export function painter(context, size) {
  const style = getComputedStyle(document.documentElement);
  const back = style.getPropertyValue('--back');
  const paths = {};
  for (const [state, shape] of Object.entries(SHAPES)) {
    paths[state] = {colour: style.getPropertyValue(`--${state}`)};
    for (const [kind, d] of Object.entries(shape)) paths[state][kind] = new Path2D(d);
  }
  return (state, x, y) => {
    const path = paths[state] ?? paths.QUEUED;
    context.save();
    context.translate(x, y);
    context.scale(size / 16, size / 16);
    context.lineWidth = 1.8;
    context.fillStyle = context.strokeStyle = path.colour;
    if (path.solid) context.fill(path.solid);
    if (path.outline) context.stroke(path.outline);
    if (path.line) context.stroke(path.line);
    context.fillStyle = context.strokeStyle = back;
    if (path.cut) context.fill(path.cut);
    if (path.cutLine) context.stroke(path.cutLine);
    context.restore();
  };
}

const sentence = (state) => state.toLowerCase().replaceAll('_', ' ');
/** A state as symbol and text. */
export const stateOf = (state) => h('span', {class: 'state'}, symbol(state), sentence(state ?? 'QUEUED'));

/** A number with about four digits. */
export function number(value, digits = 4) {
  if (value === undefined || value === null || Number.isNaN(Number(value))) return '–';
  const v = Number(value);
  if (v !== 0 && (Math.abs(v) >= 1e7 || Math.abs(v) < 1e-3)) return v.toExponential(digits - 2);
  return v.toLocaleString('en', {maximumSignificantDigits: Math.max(digits, Math.ceil(Math.log10(Math.abs(v) + 1)))});
}

export function duration(seconds) {
  if (!(seconds >= 0)) return '–';
  const tenths = Math.round(10 * seconds), whole = Math.round(seconds), minutes = Math.round(seconds / 60);
  if (tenths < 100) return `${(tenths / 10).toFixed(1)} s`;
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return minutes < 48 * 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.round(minutes / 1440)} days`;
}

/** A time in the zone of the browser. */
export function time(iso) {
  if (!iso) return '–';
  const text = new Date(iso).toLocaleString('sv');  // 2026-01-31 12:00:00
  return h('time', {datetime: iso}, text);
}

export const secondsBetween = (from, to) => (new Date(to ?? Date.now()) - new Date(from)) / 1000;

/** The values of axes: "engine=native/ddp ranks=4". */
export function keyText(key, without = []) {
  // JSON has the axes in no particular order.
  return Object.entries(key ?? {}).filter(([name]) => !without.includes(name)).sort(([a], [b]) => a < b ? -1 : 1)
    .map(([name, value]) => `${name}=${typeof value === 'object' ? JSON.stringify(value) : value}`).join(' ');
}

/** A table. `columns`: [title, class]; `rows`: arrays of cells. */
export function table(caption, columns, rows, none = 'none') {
  if (rows.length === 0) return h('p', {class: 'soft'}, `${caption}: ${none}`);
  return h('div', {class: 'table', tabindex: '0', role: 'group', 'aria-label': caption}, h('table', null,
    h('caption', null, caption),
    h('thead', null, h('tr', null, columns.map(([title, kind]) => h('th', {scope: 'col', class: kind}, title)))),
    h('tbody', null, rows.map((cells) => h('tr', null, cells.map((cell, i) => h('td', {class: columns[i][1]}, cell)))))));
}

/** A list of names and values; pairs without a value are left out. */
export function facts(pairs) {
  return h('dl', {class: 'facts'}, pairs.filter(([, value]) => value !== undefined && value !== null && value !== '')
    .map(([name, value]) => [h('dt', null, name), h('dd', null, value)]));
}

export function errorText(error) {
  const violations = (error.violations ?? []).map(({field, description}) => `${field}: ${description}`);
  return violations.length > 1 ? violations.join('\n') : error.message;
}

/** Asks a question. Resolves to whether the answer is yes. */
export function confirmed(question, action) {
  return new Promise((resolve) => {
    const dialog = h('dialog', {'aria-label': question, on: {close: () => { dialog.remove(); resolve(dialog.returnValue === 'yes'); }}},
      h('p', null, question),
      h('div', {class: 'bar-of'},
        h('button', {class: 'danger', on: {click: () => dialog.close('yes')}}, action),
        h('button', {autofocus: true, on: {click: () => dialog.close('no')}}, 'Keep')));
    document.getElementById('main').append(dialog);
    dialog.showModal();
  });
}

/** Progress of a study as a bar and as text. */
export function progress(counts) {
  const total = RUN_STATES.reduce((sum, state) => sum + (counts?.[state.toLowerCase()] ?? 0), 0);
  const order = ['SUCCEEDED', 'FAILED', 'CANCELLED', 'SKIPPED', 'RUNNING'];
  const done = total - (counts?.queued ?? 0) - (counts?.running ?? 0);
  return h('div', {class: 'progress', role: 'img', 'aria-label': `${done} of ${total} runs are final`},
    order.map((state) => h('i', {style: {width: `${100 * (counts?.[state.toLowerCase()] ?? 0) / (total || 1)}%`, background: `var(--${state})`}})));
}
export function progressText(counts) {
  const parts = RUN_STATES.filter((state) => counts?.[state.toLowerCase()])
    .map((state) => `${counts[state.toLowerCase()].toLocaleString('en')} ${sentence(state)}`);
  return parts.join(', ') || 'no runs';
}
