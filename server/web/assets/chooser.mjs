// A list of checkboxes with a search and pages, for a choice among many items.
import {h, lastPart} from './dom.mjs';

const PER_PAGE = 50;

/**
 * Returns {element, show(items)} with items {name, label}. The set `chosen` has the names of the chosen items, at most `most`.
 * `changed` is called after each change of the set. The search finds labels that contain all its words.
 */
export function chooser(title, most, chosen, changed = () => {}) {
  let items = [];
  let at = 0;  // index of the first item of the page
  const rows = new Map();  // by name; they stay the same elements, so that the focus remains
  const search = h('input', {type: 'search', id: 'search', autocomplete: 'off', size: '20', on: {input: () => turnTo(0), keydown: (event) => {
    if (event.key === 'Enter') event.preventDefault();  // it would submit a form
  }}});
  const range = h('span', {role: 'status'});
  const previous = h('button', {type: 'button', on: {click: () => turnTo(at - PER_PAGE)}}, 'Previous');
  const next = h('button', {type: 'button', on: {click: () => turnTo(at + PER_PAGE)}}, 'Next');
  const list = h('div', {class: 'choices', tabindex: '0', role: 'group', 'aria-label': `${title} of this page`});
  const names = h('p', {class: 'soft', role: 'status'});

  function turnTo(first) {
    at = first;
    fill();
  }

  function fill() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = items.filter(({label}) => words.every((word) => label.toLowerCase().includes(word)));
    at = Math.max(0, Math.min(at, Math.floor((found.length - 1) / PER_PAGE) * PER_PAGE));
    const page = found.slice(at, at + PER_PAGE);
    const wanted = page.map(rowOf);
    for (const row of [...list.children]) if (!wanted.includes(row)) row.remove();
    wanted.forEach((row, i) => { if (list.children[i] !== row) list.insertBefore(row, list.children[i] ?? null); });
    range.textContent = found.length ? `${title} ${at + 1} to ${at + page.length} of ${found.length.toLocaleString('en')}` : 'None found';
    previous.hidden = next.hidden = found.length <= PER_PAGE;
    previous.disabled = at === 0;
    next.disabled = at + PER_PAGE >= found.length;
    showNames();
  }

  function rowOf({name, label}) {
    if (!rows.has(name)) {
      rows.set(name, h('label', null, h('input', {type: 'checkbox', checked: chosen.has(name), on: {change: ({target}) => {
        if (target.checked && chosen.size >= most) target.checked = false;
        else if (target.checked) chosen.add(name);
        else chosen.delete(name);
        showNames();
        changed();
      }}}), label));
    }
    return rows.get(name);
  }

  function showNames() {
    names.textContent = `${chosen.size ? `Chosen: ${[...chosen].map(lastPart).join(', ')}. ` : ''}At most ${most} at a time.`;
  }

  showNames();
  return {
    element: h('fieldset', {class: 'chooser'}, h('legend', null, title),
      h('p', {class: 'bar-of'}, h('label', {for: 'search'}, 'Search ', search), range, previous, next), list, names),
    show(list) {
      items = list;
      fill();
    },
  };
}
