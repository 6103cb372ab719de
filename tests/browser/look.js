// What the test asks of a page with a notebook in JupyterLab.
window.look = {
  isReady() {
    const book = window.jupyterapp && window.jupyterapp.shell.currentWidget;
    const kernel = book?.sessionContext?.session?.kernel;
    return kernel?.status === 'idle' && kernel.connectionStatus === 'connected';
  },

  execute([command, options]) {
    return window.jupyterapp.commands.execute(command, options);
  },

  hasTheme(theme) {
    return document.body.dataset.jpThemeName === theme
      && document.getAnimations().every(a => a.playState !== 'running');
  },

  // The texts of outputs, each with its contrast to what is behind it.
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
      const text = walker.currentNode.data.trim(), own = e.closest('.jp-OutputArea');
      const hidden = !e.checkVisibility({visibilityProperty: true});
      if (!text || !own || hidden || e.closest('style, .jp-OutputPrompt')) continue;
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

  // What sticks out on the right of the notebook, and buttons that cut their text.
  overflow() {
    const edge = document.querySelector('.jp-Notebook').getBoundingClientRect().right;
    const all = [...document.querySelectorAll('.jp-OutputArea *')];
    return all.filter(e => {
      const box = e.getBoundingClientRect();
      const cut = e.matches('button') && e.scrollWidth > e.clientWidth + 1;
      return box.width && (cut || box.right > edge + 1);
    }).map(e => `${e.tagName} ${e.className}`);
  },
};
