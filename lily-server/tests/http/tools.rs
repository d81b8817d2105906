//! Tool calls in chat completions.

use crate::common::Server;
use serde_json::{Value, json};

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"},
        }}}},
        {"type": "function", "function": {"name": "time"}},
    ])
}

const WEATHER: &str = "<tool_call>\n<function=weather>\n<parameter=city>\nSan\nFrancisco \"CA\"\n</parameter>\n<parameter=days>\n3\n</parameter>\n\
                       </function>\n</tool_call>";
const TIME: &str = "<tool_call>\n<function=time>\n</function>\n</tool_call>";

/// Puts the deltas of a stream together, as OpenAI's own clients do.
fn accumulated(chunks: &[Value]) -> (Value, String) {
    let mut message = json!({"content": "", "reasoning_content": "", "tool_calls": []});
    let mut finish = String::new();
    for chunk in chunks {
        let choice = &chunk["choices"][0];
        for field in ["content", "reasoning_content"] {
            let text = message[field].as_str().unwrap().to_owned() + choice["delta"][field].as_str().unwrap_or("");
            message[field] = text.into();
        }
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let calls = message["tool_calls"].as_array_mut().unwrap();
            let index = call["index"].as_u64().unwrap() as usize;
            if call.get("id").is_some() {
                assert_eq!(calls.len(), index, "calls come in order");
                calls.push(json!({"name": call["function"]["name"], "arguments": ""}));
            }
            let text = calls[index]["arguments"].as_str().unwrap().to_owned()
                + call["function"]["arguments"].as_str().unwrap();
            calls[index]["arguments"] = text.into();
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            finish = reason.to_owned();
        }
    }
    (message, finish)
}

/// What a client gets for `reply`, checked to be the same streamed and not.
async fn exchange(reply: &str, mut body: Value) -> (Value, String) {
    let server = Server::new();
    body.as_object_mut().unwrap().entry("tools").or_insert_with(tools);
    server.say(reply);
    let whole = server.chat(body.clone()).await.json();
    let server = Server::new();
    server.say(reply);
    body["stream"] = true.into();
    let (streamed, finish) = accumulated(&server.chat(body).await.chunks());
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], finish);
    assert_eq!(choice["message"]["content"].as_str().unwrap_or(""), streamed["content"]);
    assert_eq!(
        choice["message"]["reasoning_content"].as_str().unwrap_or(""),
        streamed["reasoning_content"]
    );
    let calls: Vec<Value> = choice["message"]["tool_calls"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|call| {
            assert_eq!(call["type"], "function");
            call["function"].clone()
        })
        .collect();
    assert_eq!(Value::from(calls), streamed["tool_calls"]);
    (streamed, finish)
}

#[tokio::test]
async fn calls_come_with_typed_arguments_and_the_text_before_them() {
    let reply = format!("Hm.</think>\n\nI will look.\n\n{WEATHER}\n{TIME}");
    let (message, finish) = exchange(&reply, json!({})).await;
    assert_eq!(finish, "tool_calls");
    assert_eq!(message["reasoning_content"], "Hm.");
    assert_eq!(message["content"], "I will look.");
    let calls = message["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    let arguments: Value = serde_json::from_str(calls[0]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"city": "San\nFrancisco \"CA\"", "days": 3}));
    assert_eq!(calls[1], json!({"name": "time", "arguments": "{}"}));
}

#[tokio::test]
async fn a_call_inside_unclosed_thoughts_is_a_call() {
    let (message, finish) = exchange(&format!("I need the time.\n{TIME}"), json!({})).await;
    assert_eq!((finish.as_str(), &message["content"]), ("tool_calls", &json!("")));
    assert_eq!(message["reasoning_content"], "I need the time.");
    assert_eq!(message["tool_calls"][0]["name"], "time");
}

#[tokio::test]
async fn calls_need_no_thoughts() {
    let body = json!({"chat_template_kwargs": {"enable_thinking": false}});
    let (message, finish) = exchange(&format!("Look:\n{WEATHER}"), body).await;
    assert_eq!((finish.as_str(), &message["content"]), ("tool_calls", &json!("Look:")));
    assert_eq!(message["reasoning_content"], "");
    assert_eq!(message["tool_calls"][0]["name"], "weather");
}

#[tokio::test]
async fn a_malformed_call_is_text() {
    let reply = "x</think>Look: <tool_call>\nweather in Rome\n</tool_call>";
    let (message, finish) = exchange(reply, json!({})).await;
    assert_eq!((finish.as_str(), &message["tool_calls"]), ("stop", &json!([])));
    assert_eq!(message["content"], "Look:<tool_call>\nweather in Rome\n</tool_call>");
}

#[tokio::test]
async fn a_truncated_call_says_so() {
    let (message, finish) = exchange(&format!("x</think>{WEATHER}"), json!({"max_tokens": 25})).await;
    assert_eq!(finish, "length");
    assert_eq!(message["tool_calls"][0]["name"], "weather");
    assert!(serde_json::from_str::<Value>(message["tool_calls"][0]["arguments"].as_str().unwrap()).is_err());
}

#[tokio::test]
async fn without_tools_call_markup_is_text() {
    let (message, finish) = exchange(&format!("x</think>{TIME}"), json!({"tools": []})).await;
    assert_eq!((finish.as_str(), &message["content"]), ("stop", &json!(TIME)));
}

#[tokio::test]
async fn tool_choice_none_bans_calls() {
    let (message, finish) = exchange(
        &format!("x</think>{TIME}"),
        json!({"tool_choice": "none", "max_tokens": 30}),
    )
    .await;
    assert_eq!(message["tool_calls"], json!([]), "{finish}");
    assert!(!message["content"].as_str().unwrap().contains("<tool_call>"));
}

#[tokio::test]
async fn late_instructions_are_rendered_where_they_stand() {
    let server = Server::new();
    let messages = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "c"},
    ]);
    let answer = server.chat(json!({"messages": messages})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(
        server
            .last_prompt()
            .contains("<|im_end|>\n<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nc")
    );
}

#[tokio::test]
async fn thoughts_of_earlier_turns_stay_unless_the_request_says_otherwise() {
    let messages = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "because"},
        {"role": "user", "content": "c"},
    ]);
    let server = Server::new();
    server.chat(json!({"messages": messages})).await;
    assert!(
        server
            .last_prompt()
            .contains("<think>\nbecause\n</think>\n\nb<|im_end|>")
    );
    server
        .chat(json!({"messages": messages, "chat_template_kwargs": {"preserve_thinking": false}}))
        .await;
    assert!(!server.last_prompt().contains("because"));
}

#[tokio::test]
async fn a_reply_that_comes_back_is_found_in_the_cache() {
    let server = Server::new();
    // White space that the API trims, and arguments that the template lays out otherwise.
    let said = "I look. \n\n\n</think>\n\n\n<tool_call>\n<function=weather>\n<parameter=days>\n 3\n</parameter>\n</function>\n</tool_call>\n";
    server.say(said);
    let question = json!({"role": "user", "content": "weather?"});
    let body = json!({"messages": [question], "tools": tools()});
    let first = server.chat(body).await.json();
    let mut message = first["choices"][0]["message"].clone();
    let id = message["tool_calls"][0]["id"].clone();
    message["tool_calls"][0]["function"]["arguments"] = "{ \"days\" : 3 }".into();
    let result = json!({"role": "tool", "tool_call_id": id, "content": "sunny"});
    server.say("ok</think>It is sunny.");
    let second = server
        .chat(json!({"messages": [question, message, result], "tools": tools()}))
        .await
        .json();
    assert!(server.last_prompt().contains(said), "{}", server.last_prompt());
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap();
    let before = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(cached > before + 10, "{cached} of {before} and the reply");
}
