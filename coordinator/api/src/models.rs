//! `GET /v1/models` and `GET /v1/models/{id}`.

use actix_web::{HttpResponse, web};
use paceline_coordinator::{EmbedderCard, ModelCard};
use paceline_text::AnswerFormat;
use serde_json::{Value, json};

use crate::error::Result;
use crate::server::Host;
use crate::serving::{self, Card, ListedModel, Served, Task};

/// The models that can be asked for.
#[utoipa::path(
    get,
    path = "/v1/models",
    responses(
        (status = 200, description = "The models", body = Object),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn list(host: web::Data<Host>) -> HttpResponse {
    let models: Vec<Value> = host.models.list().iter().map(describe).collect();
    HttpResponse::Ok().json(json!({ "object": "list", "data": models }))
}

/// One model, by its name or an alias.
#[utoipa::path(
    get,
    path = "/v1/models/{id}",
    params(("id" = String, Path, description = "Its id")),
    responses(
        (status = 200, description = "The model", body = Object),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn show(host: web::Data<Host>, id: web::Path<String>) -> Result<HttpResponse> {
    let models = host.models.list();
    let place = serving::find(&models, Some(&id), Task::Anything)?;
    Ok(HttpResponse::Ok().json(describe(&models[place])))
}

fn describe(model: &ListedModel) -> Value {
    let mut described = match &model.card {
        Card::Texts(card) => describe_texts(card, model.served.as_ref()),
        Card::Vectors(card) => describe_vectors(card),
    };
    described["state"] = json!(model.state);
    described["meta"]["memory"] = json!(model.memory_bytes);
    described
}

/// What its template can do is known once it is loaded, and null until then.
fn describe_texts(model: &ModelCard, served: Option<&Served>) -> Value {
    let format = match served {
        Some(Served::Texts(engine)) => Some(engine.template().map(|template| template.answer_format())),
        _ => None,
    };
    let can = |can: fn(&AnswerFormat) -> bool| format.map(|format| format.is_some_and(can));
    json!({
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "paceline",
        "aliases": model.aliases,
        "capabilities": {
            "input": ["text"],
            "output": ["text"],
            "completions": true,
            "chat": can(|_| true),
            "tools": can(|format| format.shows_tools),
            "reasoning": can(|format| format.reasoning.is_some()),
        },
        // Where clients of vLLM look for it.
        "max_model_len": model.context,
        // Where clients of llama.cpp look.
        "meta": {
            "architecture": model.architecture,
            "n_ctx": model.context,
            "n_ctx_train": model.trained_context,
            "n_vocab": model.vocabulary,
            "n_params": model.parameters,
            "size": model.file_bytes,
            "stages": model.stages,
            "drafts": {
                "lookup": model.drafts.lookup,
                "mtp": model.drafts.proposals > 0 && model.draft_model.is_none(),
                "model": model.draft_model,
                "max": model.drafts.most,
                "p_min": model.drafts.least_chance,
            },
        },
    })
}

fn describe_vectors(model: &EmbedderCard) -> Value {
    json!({
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "paceline",
        "aliases": model.aliases,
        "capabilities": {
            "input": ["text"],
            "output": [if model.ranks { "scores" } else { "embeddings" }],
            "embeddings": !model.ranks,
            "rerank": model.ranks,
        },
        "max_model_len": model.context,
        "meta": {
            "architecture": model.architecture,
            "n_ctx": model.context,
            "n_ctx_train": model.trained_context,
            "n_vocab": model.vocabulary,
            "n_params": model.parameters,
            "size": model.file_bytes,
            "n_embd": model.dimensions,
            "pooling": model.pooling,
        },
    })
}
