// Shows the page that the part of the address after '#' names.
import {call, logIn, loggedIn, logOut, persist} from './api.mjs';
import {clusterPage} from './cluster.mjs';
import {comparePage} from './compare.mjs';
import {errorText, h} from './dom.mjs';
import {runPage} from './run.mjs';
import {studiesPage} from './studies.mjs';
import {studyPage} from './study.mjs';
import {submitPage} from './submit.mjs';

const main = document.getElementById('main');
const banner = document.getElementById('banner');
const PAGES = [
  [/^\/?$/, 'studies', studiesPage],
  [/^\/studies\/([^/]+)(?:\/(\w+))?$/, 'studies', studyPage],
  [/^\/runs\/(\d+)$/, 'studies', runPage],
  [/^\/compare$/, 'compare', comparePage],
  [/^\/cluster$/, 'cluster', clusterPage],
  [/^\/submit$/, 'submit', submitPage],
];
let identity = null;
let leave = new AbortController();

async function show() {
  leave.abort();
  leave = new AbortController();
  const {signal} = leave;
  const code = /^#login=(\w+)$/.exec(location.hash);
  if (code) {
    // The code must not stay in the history.
    history.replaceState(null, '', '#/');
    try {
      await logIn({code: code[1]});
      identity = null;
    } catch (error) {
      return loginPage(errorText(error));
    }
  }
  if (!loggedIn()) return loginPage();
  try {
    if (identity === null) await persist(showIdentity, signal);
    const [path, query] = location.hash.replace(/^#/, '').split('?');
    const page = PAGES.find(([pattern]) => pattern.test(path));
    for (const link of document.querySelectorAll('nav a')) {
      if (page && link.dataset.page === page[1]) link.setAttribute('aria-current', 'page');
      else link.removeAttribute('aria-current');
    }
    if (!page) return fail(new Error(`there is no page ${path}`));
    const parts = page[0].exec(path).slice(1).map((part) => part && decodeURIComponent(part));
    await persist(() => page[2](main, {parts, query: new URLSearchParams(query), identity, signal}), signal);
  } catch (error) {
    if (!signal.aborted && loggedIn()) fail(error);
  }
}

function fail(error) {
  main.replaceChildren(h('h1', null, 'This did not work'), h('p', {class: 'error', role: 'alert'}, errorText(error)),
    h('p', null, h('button', {on: {click: show}}, 'Try again')));
}

async function showIdentity() {
  ({identity} = await call('GetIdentity'));
  const may = identity.role !== 'VIEWER' && identity.scope !== 'READ_SCOPE';
  identity.maySubmit = may;
  identity.mayControl = (study) => may && (study.owner === identity.user || (identity.role === 'ADMIN' && identity.scope === 'ADMIN_SCOPE'));
  document.getElementById('nav').hidden = false;
  document.getElementById('nav-submit').hidden = !may;
  document.getElementById('who').replaceChildren(h('span', null, `${identity.user}${may ? '' : ' (reads only)'}`),
    h('button', {on: {click: logOut}}, 'Log out'));
}

function loginPage(problem = '') {
  identity = null;
  document.title = 'Log in – scalelab';
  document.getElementById('nav').hidden = true;
  document.getElementById('who').replaceChildren();
  const secret = h('input', {type: 'password', id: 'token', autocomplete: 'current-password', size: '40'});
  const message = h('p', {class: 'error', role: 'alert'}, problem);
  const submit = async (event) => {
    event.preventDefault();
    try {
      await logIn({token: secret.value.trim()});
      show();
    } catch (error) {
      message.textContent = errorText(error);
    }
  };
  main.replaceChildren(h('h1', null, 'Log in'), message,
    h('p', null, 'Run ', h('code', null, 'scalelab web'), ' and open the link that it prints. The link works once, for two minutes.'),
    h('form', {on: {submit}}, h('p', null, h('label', {for: 'token'}, 'Or paste a token of ', h('code', null, 'scalelab token create'))),
      h('input', {type: 'text', autocomplete: 'username', hidden: true}),  // for password managers
      h('p', {class: 'bar-of'}, secret, h('button', {class: 'main'}, 'Log in'))));
}

let lost = false;
addEventListener('scalelab-connection', ({detail: works}) => {
  if (works === !lost) return;
  lost = !works;
  banner.hidden = works;
  banner.textContent = works ? '' : 'The server does not answer. The page shows the last state, and connects again by itself.';
});
addEventListener('scalelab-logged-out', () => {
  leave.abort();
  loginPage('You are logged out, or your login has expired.');
});
addEventListener('hashchange', () => show().then(() => scrollTo(0, 0)));
document.querySelector('.skip').addEventListener('click', (event) => {
  event.preventDefault();
  main.focus();
});
show();
