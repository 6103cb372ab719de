// What tests ask of a page with a notebook in JupyterLab.
window.look = {
  book: () => window.jupyterapp.shell.currentWidget,

  isReady() {
    const kernel = window.jupyterapp && look.book()?.sessionContext?.session?.kernel;
    return kernel?.status === 'idle' && kernel.connectionStatus === 'connected';
  },

  haveRun() {
    const prompts = document.querySelectorAll('.jp-CodeCell .jp-InputPrompt');
    return [...prompts].every(prompt => /\d/.test(prompt.textContent));
  },

  // Run code as a cell does, to its end; return what it has printed.
  async run(code) {
    const future = look.book().sessionContext.session.kernel.requestExecute({code});
    let said = '';
    future.onIOPub = message => { said += message.content.text || ''; };
    await future.done;
    return said.trim();
  },

  execute([command, options]) {
    look.book().content.deselectAll();
    look.book().content.activeCellIndex = options.cell ?? 0;
    window.jupyterapp.commands.execute(command, options);
  },

  // The part of a panel that has the focus, and how wide the line around it is.
  focused() {
    const element = document.activeElement, own = element.closest('[class*="kit-"]');
    const name = own ? own.className.match(/kit-[\w-]+/)[0] : '';
    return [name, parseFloat(getComputedStyle(element).outlineWidth)];
  },

  hasTheme(theme) {
    return document.body.dataset.jpThemeName === theme
      && document.getAnimations().every(a => a.playState !== 'running');
  },

  // The texts of panels, each with its contrast to what is behind it.
  contrasts() {
    const parse = text => {
      const [r, g, b, alpha = 1] = text.match(/[\d.]+/g).map(Number);
      const scale = text.startsWith('color(') ? 1 : 255;
      return [[r / scale, g / scale, b / scale], alpha];
    };
    const light = colour => colour.map(x => ((x + 0.055) / 1.055) ** 2.4)
      .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0.05);
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = [];
    while (walker.nextNode()) {
      let e = walker.currentNode.parentElement;
      const text = walker.currentNode.data.trim(), own = e.closest('.kit-panel');
      const hidden = !e.checkVisibility({visibilityProperty: true});
      if (!text || !own || hidden || e.closest('style, :disabled')) continue;
      const [colour, alpha] = parse(getComputedStyle(e).color);
      const behind = () => parse(getComputedStyle(e).backgroundColor);
      while (e.parentElement && behind()[1] < 1) e = e.parentElement;
      const [below] = behind();
      const above = colour.map((x, i) => alpha * x + (1 - alpha) * below[i]);
      const [dark, bright] = [light(above), light(below)].sort((a, b) => a - b);
      found.push([text, bright / dark]);
    }
    return found;
  },

  // What sticks out on the right, and buttons that cut their text.
  overflow() {
    const all = [...document.querySelectorAll('.kit-panel, .kit-panel *')];
    return all.filter(e => {
      const room = e.parentElement.closest('.kit-panel, .jp-Notebook');
      const [box, edge] = [e, room].map(x => x.getBoundingClientRect());
      const cut = e.matches('.kit-panel, button') && e.scrollWidth > e.clientWidth + 1;
      return box.width && (cut || box.right > edge.right + 1);
    }).map(e => e.className);
  },
};
