// Rollouts as rows of a list, their tokens as places that can be pointed at.
const tokensRows = (() => {
  const { element, visible, plain, round, count } = text;

  // Whether an environment said the token.
  function seen(iteration, at) {
    return iteration.sampled !== null && iteration.sampled[at] === 0;
  }

  function completion(rollout) {
    const { of } = rollout;
    const label = "Completion of rollout " + (rollout.place + 1) + ", " + count(rollout.length, "token");
    const box = element("div", "text tokens", "", {
      role: "listbox", "aria-orientation": "horizontal", "aria-label": label,
    });
    for (let i = 0; i < rollout.shown; i++) {
      const at = rollout.start + i;
      const token = of.tokens[at];
      if (rollout.observed > 0 && (i === 0 || seen(of, at) !== seen(of, at - 1))) {
        box.append(element("div", "tv-turn", seen(of, at) ? "environment" : "policy", { role: "presentation" }));
      }
      const words = visible(of.pieces[token]).replaceAll("\n", "↵\n");
      const span = element("span", "tok", words || "[" + of.ids[token] + "]", {
        role: "option", "aria-selected": "false", tabindex: i === 0 ? 0 : -1, "data-at": at, "data-i": i,
      });
      if (rollout.finished && i === rollout.length - 1) span.classList.add("end");
      if (seen(of, at)) span.classList.add("observed");
      box.append(span);
    }
    return box;
  }

  function passage(words) {
    return element("div", "text", visible(words));
  }

  // A text that is longer than its box: keys have to reach what is scrolled.
  function reach(list) {
    for (const box of list.querySelectorAll(".text:not(.tokens)")) {
      if (box.scrollHeight <= box.clientHeight) continue;
      box.tabIndex = 0;
      box.setAttribute("role", "region");
      box.setAttribute("aria-label", "Text");
    }
  }

  function facts(rollout) {
    const { of } = rollout;
    const list = element("ul", "tv-facts");
    const fact = (className, words) => list.append(element("li", className, words));
    fact("", "rollout " + (rollout.place + 1) + ", group " + rollout.group);
    if (Number.isNaN(rollout.reward)) {
      fact("verdict", "reward —");
    } else {
      const kind = rollout.reward >= 1 ? "right" : "wrong";
      fact("verdict " + kind, "reward " + round(rollout.reward) + " (" + kind + ")");
    }
    if (!Number.isNaN(rollout.advantage)) fact("", "advantage " + plain(rollout.advantage));
    if (rollout.length > 0) fact("", count(rollout.length - rollout.observed, "token"));
    if (rollout.observed > 0) fact("", count(rollout.observed, "token") + " of its environment");
    if ("entropy" in of.values) fact("", "mean entropy " + plain(rollout.meanEntropy));
    if ("influence" in of.values) fact("", "sum of |influence| " + plain(rollout.influence));
    if (rollout.shown > 0 && !rollout.finished) {
      fact("", of.sampled ? "not over: its turns or its context ran out" : "cut off at the length limit");
    }
    if (!rollout.trained) fact("", "not trained on: its group has no signal");
    return list;
  }

  // A rollout, with its prompt beside it where no heading has it.
  function row(rollout, withPrompt) {
    const item = element("li", "tv-row" + (withPrompt ? "" : " tv-alone"), "", { "data-number": rollout.place + 1 });
    const answer = element("div", "tv-completion");
    if (rollout.shown === 0) {
      answer.append(passage(rollout.text));
    } else {
      answer.append(completion(rollout));
      if (rollout.length > rollout.shown) {
        answer.append(element("p", "soft",
          count(rollout.length - rollout.shown, "more token") + ", not on this page"));
      }
      if (rollout.plain !== null) {
        const details = element("details");
        details.append(element("summary", "", "as plain text"), passage(rollout.plain));
        answer.append(details);
      }
    }
    item.append(facts(rollout));
    if (withPrompt) {
      const prompt = element("div", "tv-prompt");
      prompt.append(passage(rollout.prompt));
      item.append(prompt);
    }
    item.append(answer);
    return item;
  }

  // What stands over the rollouts of one prompt, or of one iteration.
  function heading(words, isPrompt, parts, button) {
    const item = element("li", "tv-head");
    item.append(isPrompt ? passage(words) : element("h3", "", words));
    const list = element("ul", "tv-facts");
    for (const part of parts) list.append(element("li", "", part));
    if (button !== null) {
      const last = element("li");
      last.append(button);
      list.append(last);
    }
    item.append(list);
    return item;
  }

  return { row, heading, reach, seen };
})();
