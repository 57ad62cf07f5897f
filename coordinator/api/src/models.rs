//! `GET /v1/models` and `GET /v1/models/{id}`.

use actix_web::{HttpResponse, web};
use paceline_coordinator::ModelCard;
use serde_json::{Value, json};

use crate::error::Result;
use crate::server::Api;

/// The models that can be asked for.
pub(crate) async fn list(api: web::Data<Api>) -> HttpResponse {
    HttpResponse::Ok().json(json!({ "object": "list", "data": [describe(&api.engine.model())] }))
}

/// One model, by its name or an alias.
pub(crate) async fn show(api: web::Data<Api>, id: web::Path<String>) -> Result<HttpResponse> {
    api.check_model(Some(&id))?;
    Ok(HttpResponse::Ok().json(describe(&api.engine.model())))
}

fn describe(model: &ModelCard) -> Value {
    json!({
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "paceline",
        "aliases": model.aliases,
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
        },
    })
}
