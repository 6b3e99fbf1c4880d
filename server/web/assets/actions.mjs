// Buttons that change a study or a run.
import {call} from './api.mjs';
import {confirmed, errorText, h} from './dom.mjs';

/**
 * Returns a bar of buttons. `actions` lists for each: title, method, offered(subject), question(subject), kind. The buttons
 * stay the same elements while the subject changes, so that no click is lost and the focus remains.
 *
 * `show(subject)` shows the buttons that the subject offers; `changed(response)` is called with the server's answer.
 */
export function actionBar(actions, changed) {
  let subject;
  const note = h('span', {class: 'error', role: 'alert'});
  const buttons = actions.map(({title, method, question, kind}) => {
    const button = h('button', {class: kind, hidden: true, on: {click: async () => {
      if (question && !await confirmed(question(subject), title)) return;
      note.textContent = '';
      button.disabled = true;
      try {
        changed(await call(method, {name: subject.name}));
      } catch (error) {
        note.textContent = errorText(error);
      } finally {
        button.disabled = false;
      }
    }}}, title);
    return button;
  });
  const show = (now) => {
    subject = now;
    actions.forEach(({offered}, i) => { buttons[i].hidden = !offered(now); });
  };
  return {element: h('div', {class: 'bar-of'}, buttons, note), show};
}
