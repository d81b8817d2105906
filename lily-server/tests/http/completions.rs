//! `POST /v1/completions`, `/tokenize`, `/detokenize`, `/apply-template`, `GET /status` and `/metrics`.

use crate::common::Server;
use axum::http::StatusCode;
use serde_json::json;

#[tokio::test]
async fn a_prompt_goes_on_as_it_is() {
    let server = Server::new();
    server.say(" there.  End\n");
    let answer = server
        .post("/v1/completions", json!({"prompt": "Hello", "temperature": 0}))
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let reply = answer.json();
    assert_eq!(reply["object"], "text_completion");
    assert_eq!(reply["choices"][0]["text"], " there.  End\n");
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    assert_eq!(server.last_prompt(), "Hello");
}

#[tokio::test]
async fn a_measured_reply_goes_on_after_its_end() {
    let server = Server::new();
    let mut body = json!({"prompt": "Hello", "temperature": 0, "max_tokens": 12});
    server.say(" there.");
    let reply = server.post("/v1/completions", body.clone()).await.json();
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    body["ignore_eos"] = true.into();
    server.say(" there.");
    let reply = server.post("/v1/completions", body).await.json();
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    assert_eq!(reply["usage"]["completion_tokens"], 12);
}

#[tokio::test]
async fn the_default_limit_is_sixteen_tokens() {
    let server = Server::new();
    server.say(&"word ".repeat(100));
    let reply = server
        .post("/v1/completions", json!({"prompt": "a", "temperature": 0}))
        .await
        .json();
    assert_eq!(reply["usage"]["completion_tokens"], 16);
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn echo_tells_the_prompt_and_its_logprobs() {
    let server = Server::new();
    server.say(" c");
    let body = json!({"prompt": "a b é", "echo": true, "logprobs": 2, "max_tokens": 1, "temperature": 0});
    let reply = server.post("/v1/completions", body).await.json();
    let choice = &reply["choices"][0];
    let text = choice["text"].as_str().unwrap();
    assert!(text.starts_with("a b é"), "{text:?}");
    let logprobs = &choice["logprobs"];
    let count = reply["usage"]["total_tokens"].as_u64().unwrap() as usize;
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[list].as_array().unwrap().len(), count, "{list}: {logprobs}");
    }
    assert!(logprobs["token_logprobs"][0].is_null());
    assert!(logprobs["top_logprobs"][0].is_null());
    for position in 1..count {
        assert!(logprobs["token_logprobs"][position].as_f64().unwrap() < 0.0);
        assert_eq!(logprobs["top_logprobs"][position].as_object().unwrap().len(), 2);
    }
    let last = logprobs["text_offset"][count - 1].as_u64().unwrap() as usize;
    assert_eq!(last, "a b é".chars().count());
}

#[tokio::test]
async fn echo_without_logprobs_and_without_new_tokens() {
    let server = Server::new();
    for max_tokens in [0, 1] {
        server.say(" c");
        let body = json!({"prompt": "a b", "echo": true, "max_tokens": max_tokens, "temperature": 0});
        let reply = server.post("/v1/completions", body).await.json();
        assert!(
            reply["choices"][0]["text"].as_str().unwrap().starts_with("a b"),
            "{reply}"
        );
        assert_eq!(reply["usage"]["completion_tokens"], max_tokens);
    }
}

#[tokio::test]
async fn streams_equal_whole_replies() {
    for body in [
        json!({"prompt": "Hello", "echo": true}),
        json!({"prompt": "Hello", "echo": true, "logprobs": 1}),
        json!({"prompt": "Hello", "logprobs": 0}),
    ] {
        let server = Server::new();
        let mut body = body;
        body["temperature"] = 0.into();
        server.say(" é 😀 you");
        let whole = server.post("/v1/completions", body.clone()).await.json();
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        server.say(" é 😀 you");
        let chunks = server.post("/v1/completions", body).await.chunks();
        let text: String = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["text"].as_str())
            .collect();
        assert_eq!(text, whole["choices"][0]["text"].as_str().unwrap());
        let tokens: Vec<_> = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["logprobs"]["text_offset"].as_array())
            .flatten()
            .collect();
        let expected = whole["choices"][0]["logprobs"]["text_offset"].as_array();
        assert_eq!(tokens.len(), expected.map_or(0, Vec::len));
        assert!(
            tokens
                .iter()
                .zip(expected.into_iter().flatten())
                .all(|(left, right)| *left == right)
        );
        assert_eq!(
            chunks.last().unwrap()["usage"]["completion_tokens"],
            whole["usage"]["completion_tokens"]
        );
    }
}

#[tokio::test]
async fn several_prompts_and_choices_come_in_order() {
    let server = Server::new();
    let body = json!({"prompt": ["one", "two"], "n": 2, "max_tokens": 1, "echo": true, "seed": 1});
    let reply = server.post("/v1/completions", body).await.json();
    let texts: Vec<&str> = reply["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts.len(), 4);
    assert!(texts[0].starts_with("one") && texts[1].starts_with("one"), "{texts:?}");
    assert!(texts[2].starts_with("two") && texts[3].starts_with("two"), "{texts:?}");
}

#[tokio::test]
async fn bad_completions_are_refused() {
    let server = Server::new();
    for (body, param) in [
        (json!({"prompt": ""}), json!("prompt[0]")),
        (json!({"prompt": [100000]}), json!("prompt")),
        (json!({"prompt": 5}), json!("prompt")),
        (json!({"prompt": "a", "max_tokens": "b"}), json!("max_tokens")),
        (json!({"prompt": "word ".repeat(9000)}), json!("prompt")),
    ] {
        let answer = server.post("/v1/completions", body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
        assert_eq!(answer.error()["param"], param, "{}", answer.text);
    }
}

#[tokio::test]
async fn text_becomes_tokens_and_back() {
    let server = Server::new();
    let text = "Hi<|im_end|> é";
    let tokens = server.post("/tokenize", json!({"content": text})).await.json();
    let plain = server
        .post("/tokenize", json!({"prompt": text, "parse_special": false}))
        .await
        .json();
    assert!(tokens["count"].as_u64() < plain["count"].as_u64());
    for listed in [tokens, plain] {
        assert_eq!(listed["count"], listed["tokens"].as_array().unwrap().len());
        let back = server
            .post("/detokenize", json!({"tokens": listed["tokens"]}))
            .await
            .json();
        assert_eq!(back["content"], text);
    }
    let pieces = server
        .post("/tokenize", json!({"content": "ab", "with_pieces": true}))
        .await
        .json();
    assert!(pieces["tokens"][0]["piece"].is_string(), "{pieces}");

    let messages = json!([{"role": "user", "content": "hi"}]);
    let prompt = server
        .post("/apply-template", json!({"messages": messages}))
        .await
        .json();
    assert_eq!(
        prompt["prompt"],
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    );
    let chat = server.post("/tokenize", json!({"messages": messages})).await.json();
    let text = server
        .post("/tokenize", json!({"content": prompt["prompt"]}))
        .await
        .json();
    assert_eq!(chat["tokens"], text["tokens"]);

    for (path, body) in [
        ("/tokenize", json!({})),
        ("/tokenize", json!({"content": "a", "messages": messages})),
        ("/tokenize", json!({"messages": "a"})),
        ("/detokenize", json!({"tokens": [100000]})),
        ("/detokenize", json!({"tokens": [-1]})),
    ] {
        assert_eq!(
            server.post(path, body.clone()).await.status,
            StatusCode::BAD_REQUEST,
            "{path} {body}"
        );
    }
}

#[tokio::test]
async fn status_and_metrics_count_what_happened() {
    let server = Server::new();
    server.say("a</think>b c d");
    server.chat(json!({})).await;
    server.until_finished(1).await;
    server.get("/nowhere").await;
    let status = server.get("/status").await.json();
    assert_eq!(status["engine"]["finished"], 1, "{status}");
    assert_eq!(status["device"]["kind"], "script");
    assert!(status["engine"]["generated_tokens"].as_u64().unwrap() > 3);
    let text = server.get("/metrics").await.text;
    for line in [
        "lily_requests_total{path=\"/v1/chat/completions\",status=\"200\"} 1",
        "lily_requests_total{path=\"other\",status=\"404\"} 1",
        "lily_time_to_first_token_seconds_count 1",
        "lily_queue_time_seconds_count 1",
        "lily_generations_finished_total 1",
        "lily_requests_running 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
}
