//! `GET /v1/models` and `GET /v1/models/{id}`.

use actix_web::{HttpResponse, web};
use paceline_coordinator::Engine;
use serde_json::{Value, json};

use crate::error::Result;
use crate::server::Api;

/// The models that can be asked for.
#[utoipa::path(
    get,
    path = "/v1/models",
    responses(
        (status = 200, description = "The models", body = Object),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn list(api: web::Data<Api>) -> HttpResponse {
    HttpResponse::Ok().json(json!({ "object": "list", "data": [describe(&api.engine)] }))
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
pub(crate) async fn show(api: web::Data<Api>, id: web::Path<String>) -> Result<HttpResponse> {
    api.check_model(Some(&id))?;
    Ok(HttpResponse::Ok().json(describe(&api.engine)))
}

fn describe(engine: &Engine) -> Value {
    let model = engine.model();
    let format = engine.template().map(|template| template.answer_format());
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
            "chat": format.is_some(),
            "tools": format.is_some_and(|format| format.shows_tools),
            "reasoning": format.is_some_and(|format| format.reasoning.is_some()),
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
