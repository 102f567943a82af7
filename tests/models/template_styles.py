"""Chat templates in the styles of public ones, in our own words: their texts, and the forms they read."""

# ruff: noqa: E501 -- templates have long lines

from __future__ import annotations

TOKENS = (
    *("<s>", "</s>", "<unk>", "<pad>", "<|im_start|>", "<|im_end|>", "<|begin|>", "<|head|>", "<|/head|>"),
    *("<|eot|>", "[INST]", "[/INST]", "[TOOLS]", "[/TOOLS]", "[CALLS]", "[RESULTS]", "[/RESULTS]", "<turn>"),
    *("</turn>", "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<\uff5cend\uff5c>", "<|user|>", "<|end|>"),
    *("<|assistant|>", "<|system|>", "<|tool|>", "<|start|>", "<|channel|>", "<|message|>", "<|call|>"),
    *("<|return|>", "<image>", "<|vision|>", "[MASK]", "[CLS]", "[SEP]"),
)
"""Special tokens, and below them those that are not special."""
PLAIN_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

TEXTS = {
    "chatml": CHATML,
    "chatml with a system message of its own": """\
{% for message in messages %}{% if loop.first and message.role != 'system' %}<|im_start|>system
Be helpful.<|im_end|>
{% endif %}<|im_start|>{{ message.role }}
{{ message.content | trim }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    "llama 2": """\
{%- if messages[0]['role'] == 'system' -%}
  {%- set told = '<<SYS>>\\n' ~ messages[0]['content'] ~ '\\n<</SYS>>\\n\\n' -%}{%- set turns = messages[1:] -%}
{%- else -%}{%- set told = '' -%}{%- set turns = messages -%}{%- endif -%}
{%- for turn in turns -%}
  {%- if (turn['role'] == 'user') != (loop.index0 % 2 == 0) -%}
    {{- raise_exception('user and assistant must take turns') -}}
  {%- endif -%}
  {%- if turn['role'] == 'user' -%}
    {{- bos_token ~ '[INST] ' ~ (told if loop.first else '') ~ turn['content'].strip() ~ ' [/INST]' -}}
  {%- else -%}{{- ' ' ~ turn['content'].strip() ~ ' ' ~ eos_token -}}{%- endif -%}
{%- endfor -%}""",
    "llama 3": """\
{% set turns = messages %}{% for turn in turns %}
{% set text = '<|head|>' + turn['role'] + '<|/head|>\\n\\n' + turn['content'] | trim + '<|eot|>' %}
{% if loop.index0 == 0 %}{% set text = bos_token + text %}{% endif %}{{ text }}{% endfor %}
{% if add_generation_prompt %}{{ '<|head|>assistant<|/head|>\\n\\n' }}{% endif %}""",
    "llama 3.1, tools and a date": """\
{{- bos_token }}
{%- if not day is defined %}{%- set day = 'day' ~ (strftime_now('%Y') | length) %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
  {%- set told = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set told = '' %}{%- endif %}
{{- '<|head|>system<|/head|>\\n\\n' }}{{- 'Today: ' + day + '\\n\\n' }}
{%- if tools is not none %}{%- for one in tools %}{{- one | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}
{%- endif %}{{- told + '<|eot|>' }}
{%- for message in messages %}
  {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
    {{- '<|head|>' + message['role'] + '<|/head|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
  {%- elif 'tool_calls' in message %}
    {%- if not message.tool_calls | length == 1 %}{{- raise_exception('one call at once') }}{%- endif %}
    {%- set call = message.tool_calls[0].function %}
    {{- '<|head|>assistant<|/head|>\\n\\n{"name": "' + call.name + '", ' }}
    {{- '"parameters": ' }}{{- call.arguments | tojson }}{{- '}<|eot|>' }}
  {%- else %}
    {{- '<|head|>ipython<|/head|>\\n\\n' }}
    {%- if message.content is mapping %}{{- message.content | tojson }}
    {%- else %}{{- message.content }}{%- endif %}{{- '<|eot|>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|head|>assistant<|/head|>\\n\\n' }}{%- endif %}""",
    "mistral, tools before the last question": """\
{%- if messages[0].role == 'system' %}{%- set told = messages[0].content %}{%- set rest = messages[1:] %}
{%- else %}{%- set rest = messages %}{%- endif %}
{%- set asked = rest | selectattr('role', 'equalto', 'user') | list %}{{- bos_token }}
{%- for message in rest %}
  {%- if message.role == 'user' %}
    {%- if tools is not none and message == asked[-1] %}
      {{- '[TOOLS] [' }}
      {%- for tool in tools %}{%- set tool = tool.function %}
        {{- '{"type": "function", "function": {' }}
        {%- for key, value in tool.items() if key != 'return' %}
          {%- if value is string %}{{- '"' + key + '": "' + value + '"' }}
          {%- else %}{{- '"' + key + '": ' + value | tojson }}{%- endif %}
          {%- if not loop.last %}{{- ', ' }}{%- endif %}
        {%- endfor %}{{- '}}' }}{%- if not loop.last %}{{- ', ' }}{%- else %}{{- ']' }}{%- endif %}
      {%- endfor %}{{- '[/TOOLS]' }}
    {%- endif %}
    {%- if loop.last and told is defined %}{{- '[INST] ' + told + '\\n\\n' + message.content + '[/INST]' }}
    {%- else %}{{- '[INST] ' + message.content + '[/INST]' }}{%- endif %}
  {%- elif message.tool_calls is defined and message.tool_calls is not none %}
    {{- '[CALLS] [' }}
    {%- for call in message.tool_calls %}{%- set out = call.function | tojson %}
      {{- out[:-1] }}{{- ', "id": "' + call.id + '"}' }}
      {%- if not loop.last %}{{- ', ' }}{%- else %}{{- ']' + eos_token }}{%- endif %}
    {%- endfor %}
  {%- elif message.role == 'assistant' %}{{- ' ' + message.content | trim + eos_token }}
  {%- else %}
    {{- '[RESULTS] {"content": ' + message.content | string + ', "call_id": "' + message.tool_call_id }}
    {{- '"}[/RESULTS]' }}
  {%- endif %}
{%- endfor %}""",
    "gemma": """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}
{% for message in messages %}
{% if (message['role'] == 'assistant') %}{% set who = 'model' %}{% else %}{% set who = message['role'] %}{% endif %}
{{ '<turn>' + who + '\\n' + message['content'] | trim + '</turn>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<turn>model\\n' }}{% endif %}""",
    "deepseek, reasoning cut": """\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{% set ns = namespace(first=true, tool=false, told='') %}
{%- for message in messages %}{%- if message['role'] == 'system' %}
  {%- set ns.told = ns.told + message['content'] %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.told }}
{%- for message in messages %}
  {%- if message['role'] == 'user' %}{{ '<\uff5cUser\uff5c>' + message['content'] }}{%- endif %}
  {%- if message['role'] == 'assistant' %}
    {%- set content = message['content'] %}
    {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}
    {{ '<\uff5cAssistant\uff5c>' + content + '<\uff5cend\uff5c>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<\uff5cAssistant\uff5c><think>\\n' }}{% endif %}""",
    "qwen, reasoning cut before the last question": """\
{%- if tools %}{{- '<|im_start|>system\\n# Tools\\n<tools>' }}
  {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}{{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
  {%- set index = (messages|length - 1) - loop.index0 %}
  {%- if ns.searching and message.role == 'user' and message.content is string
      and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
    {%- set ns.searching = false %}{%- set ns.last = index %}
  {%- endif %}
{%- endfor %}
{%- for message in messages %}
  {%- set content = message.content if message.content is string else '' %}
  {%- if message.role in ('user', 'system') %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
  {%- elif message.role == 'assistant' %}
    {%- set thought = '' %}
    {%- if message.reasoning_content is string %}{%- set thought = message.reasoning_content %}
    {%- elif '</think>' in content %}
      {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
      {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {%- if loop.index0 > ns.last and (loop.last or thought) %}
      {{- '<|im_start|>assistant\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
    {%- else %}{{- '<|im_start|>assistant\\n' + content }}{%- endif %}
    {%- for call in message.tool_calls or [] %}
      {%- if (loop.first and content) or not loop.first %}{{- '\\n' }}{%- endif %}
      {%- if call.function %}{%- set call = call.function %}{%- endif %}
      {{- '<tool_call>\\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}
      {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
      {{- '}\\n</tool_call>' }}
    {%- endfor %}{{- '<|im_end|>\\n' }}
  {%- elif message.role == 'tool' %}
    {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
    {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
    {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
  {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}""",
    "reasoning cut in a macro": """\
{%- macro without(text) %}{%- if '</think>' in text %}{{- text.split('</think>')[-1].lstrip() }}
{%- else %}{{- text }}{%- endif %}{%- endmacro %}
{%- for message in messages %}
  {{- '<|im_start|>' ~ message.role ~ '\\n' ~ without(message.content) ~ '<|im_end|>\\n' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}""",
    "reasoning cut out of what a macro made": """\
{%- macro said(message) %}{{- message.content }}{%- endmacro %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for message in messages %}
  {%- set content = said(message) | trim %}
  {%- if message.role == 'assistant' and '</think>' in content and loop.index0 < ns.last %}
    {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
  {%- endif %}
  {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}""",
    "reasoning cut out of a block": """\
{%- for message in messages %}
  {%- set body %}<{{ message.role }}>{{ message.content }}{% endset %}
  {%- if '</think>' in body %}
    {%- set body = body.partition('<think>')[0] ~ body.rpartition('</think>')[2] %}{%- endif %}
  {{- '<|im_start|>' }}{{ body.removeprefix('<user>') }}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    "reasoning joined again": """\
{%- for message in messages %}{%- set parts = message.content.split('</think>') %}
{{- '<|im_start|>' + message.role + '\\n' + (parts[1:] or parts) | join('|') | replace('<think>', '') }}
{{- [parts | length, parts[0] | length] | join(',') }}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    "reasoning under another name": """\
{%- for message in messages %}
  {%- if message.role == 'assistant' and message.thinking is defined and message.thinking %}
    {{- '<|start|>assistant<|channel|>analysis<|message|>' ~ message.thinking ~ '<|end|>' }}
  {%- endif %}
  {%- if message.tool_calls %}{%- set call = message.tool_calls[0].function %}
    {{- '<|start|>assistant to=functions.' ~ call.name ~ '<|channel|>commentary json<|message|>' }}
    {{- call.arguments | tojson }}{{- '<|call|>' }}
    {%- set ns = namespace(name=call.name) %}
  {%- elif message.role == 'tool' %}
    {{- '<|start|>functions to=assistant<|channel|>commentary<|message|>' ~ message.content | tojson ~ '<|end|>' }}
  {%- elif message.role == 'assistant' %}
    {{- '<|start|>assistant<|channel|>final<|message|>' ~ message.content ~ '<|end|>' }}
  {%- else %}{{- '<|start|>' ~ message.role ~ '<|message|>' ~ message.content ~ '<|end|>' }}{%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}""",
    "a macro that describes types": """\
{%- macro kind(spec) %}{%- if spec.type == 'array' %}{{- kind(spec['items']) ~ '[]' }}
{%- elif spec.type == 'object' %}{{- 'object' }}{%- elif spec.enum %}
  {%- for one in spec.enum %}{{- '"' + one + '"' }}{%- if not loop.last %}{{- ' | ' }}{%- endif %}{%- endfor %}
{%- else %}{{- spec.type }}{%- endif %}{%- endmacro %}
{%- macro describe(tools) %}{{- '## functions\\n' }}
{%- for tool in tools %}{%- set tool = tool.function %}{{- '// ' + tool.description + '\\ntype ' + tool.name + ' = (' }}
  {%- for name, spec in tool.parameters.properties.items() %}
    {{- name + ('' if name in (tool.parameters.required or []) else '?') + ': ' }}{{- kind(spec) }}
    {%- if spec.default is defined %}{{- ' // default: ' }}{{- spec.default | tojson }}{%- endif %}
    {%- if not loop.last %}{{- ', ' }}{%- endif %}
  {%- endfor %}{{- ') => any;\\n' }}
{%- endfor %}{%- endmacro %}
{%- if tools %}{{- '<|system|>' + describe(tools) + '<|end|>' }}{%- endif %}
{%- for message in messages %}
  {{- '<|' + (message.role if message.role != 'tool' else 'user') + '|>' + message.content + '<|end|>' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}""",
    "generation tags": """\
{%- for message in messages %}
{%- if message.role == 'assistant' %}<|assistant|>{% generation %}{{ message.content + '<|end|>' }}{% endgeneration %}
{%- else %}{{ '<|' ~ message.role ~ '|>' ~ message.content ~ '<|end|>' }}{% endif %}
{%- endfor %}{%- if add_generation_prompt %}<|assistant|>{% endif %}""",
    "what is set in generation tags": """\
{%- set end = 'outer' %}{%- for message in messages %}{{ message.content }}
{%- generation %}{%- set end = 'inner' %}{{ end ~ loop.index }}{%- endgeneration %}{{ end }}
{%- endfor %}{%- if add_generation_prompt %}<|assistant|>{% endif %}""",
    "roles by a dictionary": """\
{%- set names = {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'ASSISTANT', 'tool': 'TOOL'} -%}
{%- for message in messages -%}{{ names[message['role']] }}: {{ message['content'] }}
{%- if message['role'] == 'assistant' %}{{ eos_token }}{% else %} {% endif %}{%- endfor -%}
{% if add_generation_prompt %}ASSISTANT:{% endif %}""",
    "tools told by the first user": """\
{%- set ns = namespace(told=false) %}{%- for m in messages %}{%- set text = m.content %}
{%- if m.role == 'user' and tools and not ns.told %}{%- set ns.told = true %}
{%- set text = 'Tools: ' ~ (tools | map(attribute='function.name') | join(', ')) ~ '\\n' ~ text %}{%- endif %}
{%- set calls = m.tool_calls | default([]) | map(attribute='function') | map('tojson') | join(';') %}
{{- [m.role, text, calls] | select | join('|') ~ '<|end|>' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}""",
    "alpaca": """\
{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}### Instruction:
{{ message.content }}

{% elif message.role == 'assistant' %}### Response:
{{ message.content }}{{ eos_token }}

{% else %}{{ message.content }}

{% endif %}{% endfor %}{% if add_generation_prompt %}### Response:
{% endif %}""",
    "zephyr": """\
{% for message in messages %}
{% if message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}{{ '<|assistant|>\\n' + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}{% endfor %}""",
    "phi": """\
{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'user' %}{{'<|user|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>
' + message['content'] + '<|end|>
'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% else %}{{ eos_token }}{% endif %}""",
    "loop controls": """\
{% for message in messages %}{% if message.role == 'system' %}{% continue %}{% endif %}
{{ message.role | upper }}> {{ message.content }}
{% if loop.index > 6 %}{% break %}{% endif %}{% endfor %}{% if add_generation_prompt %}ASSISTANT> {% endif %}""",
    "switches of the client": """\
{%- set level = reasoning_effort | default('medium') %}{%- set on = enable_thinking | default(true) %}
{{- '<|system|>effort: ' ~ level ~ '<|end|>' }}
{%- for m in messages %}{{- '<|' ~ m.role ~ '|>' ~ m.content ~ '<|end|>' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' ~ ('<think>' if on else '<think></think>') }}{%- endif %}""",
    "think and no_think in the text": """\
{%- set ns = namespace(on=true) %}
{%- for m in messages %}{%- if m.role == 'user' %}
  {%- if m.content.rstrip().endswith('/no_think') %}{%- set ns.on = false %}
  {%- elif '/think' in m.content %}{%- set ns.on = true %}{%- endif %}{%- endif %}
{{- '<|im_start|>' + m.role + '\\n' + m.content.replace('/no_think', '').rstrip() + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' ~ ('' if ns.on else '<think>\\n\\n</think>') }}{% endif %}""",
    "documents": """\
{%- if documents %}{{- '<|system|>' }}{%- for one in documents %}
{{- '[' ~ loop.index ~ '] ' ~ (one.title | default('untitled')) ~ ': ' ~ one.text | trim ~ '\\n' }}{%- endfor %}{{- '<|end|>' }}
{%- endif %}{%- for m in messages %}{{- '<|' ~ m.role ~ '|>' ~ m.content ~ '<|end|>' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}""",
    "all special tokens": """\
{%- for m in messages %}{{- cls_token ~ m.role ~ sep_token ~ m.content ~ (mask_token if loop.last else pad_token) }}
{%- endfor %}{{- unk_token }}{%- if add_generation_prompt %}{{- bos_token }}{%- endif %}""",
    "a name and a call block": """\
{%- macro turn(role) %}<|im_start|>{{ role }}
{{ caller() }}<|im_end|>
{% endmacro %}
{%- for m in messages %}{% call turn(m.role) %}{{ m.name ~ ': ' if m.name else '' }}{{ m.content }}{% endcall %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    "filters and slices": """\
{%- for m in messages %}{%- filter trim %}
{{ m.content | replace('\\n', ' ') | truncate(40, true, '...', 0) }} {{ m.content[:3] ~ m.content[-2:] }}
{{ m.content.split() | join('_') }} {{ m.content | length }} {{ m.content | upper }} {{ m.content.title() }}
{%- endfilter %}<|end|>{% endfor %}{%- if add_generation_prompt %}<|assistant|>{% endif %}""",
    "character by character": """\
{%- for m in messages %}{%- for c in m.content %}{{ '(' if c == '<' else ')' if c == '>' else c }}{%- endfor %}
{{- '<|end|>' }}{%- set lines = m.content.splitlines() %}{{ lines | length }}{{ lines | first }}{{ (lines | last).strip('.') }}
{%- endfor %}{%- if add_generation_prompt %}<|assistant|>{% endif %}""",
}
"""Styles that read content as text."""

PARTS = {
    "parts alone": """\
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}
{%- for part in message.content %}{%- if part.type == 'text' %}{{- part.text }}{%- endif %}{%- endfor %}
{{- '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}""",
    "images first": """\
{% for message in messages %}<|{{ message['role'] }}|>
{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}<image>{% endfor %}
{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] ~ '\\n' }}{% endfor %}
<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}""",
    "parts after a system message": """\
{%- if messages[0].role != 'system' %}{{ raise_exception('a system message comes first') }}{% endif %}
{%- for m in messages %}{{ '<|' ~ m.role ~ '|>' }}{% for p in m.content %}{{ p.text }}{% endfor %}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}""",
    "parts by their keys, in a macro": """\
{%- macro parts(content) %}{%- for one in content %}{%- if 'image' in one or 'image_url' in one %}{{- '<|vision|>' }}
{%- elif 'text' in one %}{{- one['text'] }}{%- endif %}{%- endfor %}{%- endmacro %}
{%- for m in messages %}{%- set said = parts(m.content) | trim %}
{%- if said.startswith(('<think>', 'x')) and '</think>' in said %}{%- set said = said.split('</think>')[-1].lstrip() %}{%- endif %}
{{- '<turn>' + m.role + '\\n' + said + '</turn>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<turn>assistant\\n' }}{%- endif %}""",
}
"""Styles that loop over parts."""

FIRST = {
    "the first part": """\
{%- for message in messages %}{{- '<|' + message['role'] + '|>' + message['content'][0]['text'] + '<|end|>' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}""",
    "the first part, or nothing": """\
{% for message in messages %}{{ message.role }}: {{ (message.content | first).text }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}""",
}
"""Styles that read only the first part."""

BOTH = {
    "a text, or parts with images": """\
{%- set seen = namespace(images=0) %}
{%- for message in messages %}{%- if loop.first and message.role != 'system' %}{{- '<|im_start|>system\\nHelp.<|im_end|>\\n' }}{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{- message.content + '<|im_end|>\\n' }}
{%- else %}{%- for one in message.content %}
  {%- if one.type == 'image' or 'image' in one %}{%- set seen.images = seen.images + 1 %}{{- '<|vision|>' }}
  {%- elif 'text' in one %}{{- one.text }}{%- endif %}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}""",
    "a text, or parts of which each is trimmed": """\
{{- bos_token }}{%- for m in messages %}{{- '<turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}
{%- if m.content is string %}{{- m.content | trim }}
{%- elif m.content is iterable %}{%- for one in m.content %}
  {%- if one['type'] == 'image' %}{{- '<image>' }}{%- elif one['type'] == 'text' %}{{- one['text'] | trim }}{%- endif %}
{%- endfor %}{%- else %}{{- raise_exception('neither text nor parts') }}{%- endif %}{{- '</turn>\\n' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<turn>model\\n' }}{%- endif %}""",
}
"""Styles that read either form."""

MIXED = {
    "users speak in parts, others in text": """\
{%- for m in messages %}{%- if m.role == 'user' %}<|user|>{% for one in m.content %}{{ one.text }}{% endfor %}<|end|>
{%- else %}{{ '<|' ~ m.role ~ '|>' ~ m.content ~ '<|end|>' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}""",
    "the system has a first part, others text": """\
{%- for m in messages %}{%- if m.role == 'system' %}{{- '<|system|>' + m.content[0]['text'] + '<|end|>' }}
{%- else %}{{- '<|' + m.role + '|>' + m.content + '<|end|>' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}""",
    "answers are text, all else parts": """\
{%- for m in messages %}{%- if m.role == 'assistant' %}{{- '[CALLS]' if m.tool_calls }}{{- m.content | trim ~ eos_token }}
{%- else %}{{- '[INST]' }}{%- for one in m['content'] if one['type'] == 'text' %}{{- one['text'] }}{%- endfor %}{{- '[/INST]' }}
{%- endif %}{%- endfor %}""",
}
"""Styles whose form depends on the role."""
