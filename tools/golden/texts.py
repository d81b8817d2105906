"""Golden tokenizations and chats from the Python packages tokenizers and transformers.

    texts.py tokenizer TOKENIZER.json GOLDEN.json
    texts.py chat TOKENIZER.json TEMPLATE.jinja GOLDEN.json

Rewrites the ids (and rendered prompts or errors) in GOLDEN for the texts (or messages and template arguments) that stand there.
"""

import json
import sys
from pathlib import Path

from transformers import PreTrainedTokenizerFast

kind, tokenizer_file, *template_file, golden_file = sys.argv[1:]
tokenizer = PreTrainedTokenizerFast(tokenizer_file=tokenizer_file, eos_token="<|im_end|>", pad_token="<|endoftext|>")
golden = json.loads(Path(golden_file).read_text())
for case in golden:
    if kind == "chat":
        for old in ("rendered", "ids", "error"):
            case.pop(old, None)
        template = Path(template_file[0]).read_text()
        try:
            case["rendered"] = tokenizer.apply_chat_template(
                case["messages"], chat_template=template, tokenize=False, **case["kwargs"]
            )
            case["ids"] = tokenizer.encode(case["rendered"], add_special_tokens=False)
        except Exception as error:
            case["error"] = f"{type(error).__name__}: {error}"
    else:
        case["ids"] = tokenizer.encode(case["text"], add_special_tokens=False)
Path(golden_file).write_text(json.dumps(golden, ensure_ascii=False, indent=1))
