//! The pen that architectures write with: scratch buffers by name, weights by their place in a layer, and the ends
//! that all architectures share (embeddings, residual stream, final norm and head).

use std::collections::HashSet;
use std::ops::Range;

use paceline_compute::program::{Buffer, BufferSpec, Op, Product, Program, RowSpace, Weight, WeightSpec, WeightUse};
use paceline_gguf::DRAFT_PREFIX;

use crate::settings::Settings;
use crate::{Error, Result, StageLayers};

/// The table of token embeddings, which is also the head of models without one of their own.
pub(crate) const EMBEDDINGS: &str = "token_embd.weight";

/// What a draft model that reads layers' inputs multiplies them with.
const PROJECTION: &str = "fc.weight";

/// A program in the making.
pub(crate) struct Recorder<'a> {
    settings: &'a Settings<'a>,
    stage: &'a StageLayers,
    /// The model that this one drafts for, if the two are open together: then tensors of this one have a prefix.
    target: Option<&'a Settings<'a>>,
    program: Program,
    stream: Buffer,
    /// The sum of what a draft model reads of the layers' inputs, where there is any of it.
    taps: Option<Buffer>,
    layer: Option<usize>,
}

impl<'a> Recorder<'a> {
    /// Begins a program: the residual stream `(rows, width)`, filled from the embeddings on the first stage.
    pub(crate) fn begin(settings: &'a Settings<'a>, stage: &'a StageLayers) -> Result<Recorder<'a>> {
        check_layers(stage, settings.layers())?;
        let mut program = Program { embeds: stage.first, ..Program::default() };
        let stream = program.buffer("stream", settings.width(), RowSpace::Step);
        program.stream = Some(stream);
        program.input = Some(stream);
        let mut recorder = Recorder { settings, stage, target: None, program, stream, taps: None, layer: None };
        recorder.begin_taps();
        if stage.first {
            let table = recorder.global(EMBEDDINGS, WeightUse::Table)?;
            recorder.record("model.input_embed", Op::Embed { table, output: stream });
        }
        Ok(recorder)
    }

    /// Begins the program of a draft model that reads rows of the model it drafts for: `(rows, width)`, which come in
    /// and are not its residual stream.
    pub(crate) fn begin_draft(settings: &'a Settings<'a>, stage: &'a StageLayers) -> (Recorder<'a>, Buffer) {
        let mut program = Program::default();
        let read = program.buffer("h_nextn", settings.width(), RowSpace::Step);
        program.input = Some(read);
        let stream = program.buffer("stream", settings.width(), RowSpace::Step);
        (Recorder { settings, stage, target: None, program, stream, taps: None, layer: None }, read)
    }

    /// Begins the program of a draft model with embeddings and head of `target`, with which it is open together.
    pub(crate) fn begin_block_draft(
        settings: &'a Settings<'a>,
        target: &'a Settings<'a>,
        stage: &'a StageLayers,
    ) -> Recorder<'a> {
        let mut program = Program::default();
        let stream = program.buffer("stream", settings.width(), RowSpace::Step);
        program.stream = Some(stream);
        Recorder { settings, stage, target: Some(target), program, stream, taps: None, layer: None }
    }

    /// Ends the program of a draft model, with logits of its own or those of the model that it drafts for.
    pub(crate) fn finish_draft(mut self, norm: Weight, head: &str) -> Result<Program> {
        self.layer = None;
        let vocabulary = self.settings.tensor(head)?.shape.rows();
        let head = self.global(head, WeightUse::Matrix)?;
        self.head(norm, head, vocabulary);
        self.refuse_unused_tensors()?;
        Ok(self.program)
    }

    /// Ends a program; on the last stage with the final norm and the logits of the wanted rows.
    pub(crate) fn finish(mut self) -> Result<Program> {
        self.layer = None;
        if self.stage.last && self.settings.headless {
            let norm = self.global("output_norm.weight", WeightUse::Vector)?;
            self.last_norm(norm);
        } else if self.stage.last {
            let (settings, head) = (self.settings, self.settings.head_name());
            let vocabulary = settings.tensor(head)?.shape.rows();
            let norm = self.global("output_norm.weight", WeightUse::Vector)?;
            let head = self.global(head, WeightUse::Matrix)?;
            self.head(norm, head, vocabulary);
            self.program.features = self.taps;
        } else {
            self.pass_on();
        }
        self.refuse_unused_tensors()?;
        Ok(self.program)
    }

    /// Ends the program of a draft model that was begun with its target, whose head it has.
    pub(crate) fn finish_block_draft(mut self) -> Result<Program> {
        self.layer = None;
        let target = self.target();
        let name = target.head_name();
        let vocabulary = target.tensor(name)?.shape.rows();
        let norm = self.global("output_norm.weight", WeightUse::Vector)?;
        let head = self.of_target(name, WeightUse::Matrix)?;
        self.head(norm, head, vocabulary);
        // The projection is the target's stages'.
        let used: HashSet<&str> = self.program.weights.iter().map(|spec| spec.tensor.as_str()).collect();
        let is_known = |name: &str| name == PROJECTION || used.contains(self.name_of(name).as_str());
        match self.settings.model.tensors().find(|tensor| !is_known(tensor.name)) {
            None => Ok(self.program),
            Some(tensor) => Err(self.unused(tensor.name)),
        }
    }

    /// Adds the sum of what a draft model reads, where this stage or one before has any of it, and takes apart the rows
    /// that it comes with.
    fn begin_taps(&mut self) {
        let (settings, layers) = (self.settings, &self.stage.layers);
        let Some(taps) = settings.taps.as_ref().filter(|taps| taps.begin_before(layers.end)) else { return };
        let sum = self.scratch("dflash_taps", taps.width());
        self.taps = Some(sum);
        if taps.begin_before(layers.start) {
            let carried = self.carried(taps.width());
            self.program.input = Some(carried);
            self.record("carried", Op::Split { input: carried, first: self.stream, second: sum });
        }
    }

    /// Adds to that sum what is read of the input of the layer that was entered.
    fn tap(&mut self, layer: usize) -> Result<()> {
        let Some((taps, output)) = self.settings.taps.as_ref().zip(self.taps) else { return Ok(()) };
        for (index, columns) in taps.of_layer(layer).enumerate() {
            let whole = WeightSpec::whole(format!("{DRAFT_PREFIX}{PROJECTION}"), WeightUse::Matrix);
            let weight = self.weight(WeightSpec { columns: Some(columns), ..whole })?;
            let add = index > 0 || taps.begin_before(layer);
            self.linear("dflash_taps", self.stream, vec![Product { weight, output, add }]);
        }
        Ok(())
    }

    /// Hands on the residual stream, and with it the sum of what a draft model reads, if there is any of it yet.
    fn pass_on(&mut self) {
        let Some(taps) = self.taps else {
            self.program.output = Some(self.stream);
            return;
        };
        let output = self.carried(self.program.width(taps));
        self.record("carried", Op::Join { first: self.stream, second: taps, output });
        self.program.output = Some(output);
    }

    /// Rows as they travel between stages: the residual stream and `more` values.
    fn carried(&mut self, more: usize) -> Buffer {
        self.scratch("carried", self.settings.width() + more)
    }

    /// Ends the program of an encoder with the wanted rows of the residual stream, `(wanted rows, width)`.
    pub(crate) fn finish_rows(mut self) -> Result<Program> {
        let rows = self.gather();
        self.program.hidden = Some(rows);
        self.refuse_unused_tensors()?;
        Ok(self.program)
    }

    /// Ends the program of an encoder with a classifier over the wanted rows: one number for each.
    pub(crate) fn finish_scores(mut self) -> Result<Program> {
        let rows = self.gather();
        let width = self.settings.width();
        let inner = self.classify("cls", rows, width)?;
        self.record("cls_tanh", Op::Tanh { buffer: inner });
        let scores = self.classify("cls.output", inner, 1)?;
        self.program.hidden = Some(scores);
        self.refuse_unused_tensors()?;
        Ok(self.program)
    }

    /// A matrix of the classifier and its bias, over wanted rows.
    fn classify(&mut self, name: &'static str, input: Buffer, width: usize) -> Result<Buffer> {
        let weight = self.global(&format!("{name}.weight"), WeightUse::Matrix)?;
        let output = self.program.buffer(name, width, RowSpace::Wanted);
        self.linear(name, input, vec![product(weight, output)]);
        let bias = self.global(&format!("{name}.bias"), WeightUse::Vector)?;
        self.record(name, Op::AddBias { buffer: output, bias });
        Ok(output)
    }

    /// The wanted rows of the residual stream.
    fn gather(&mut self) -> Buffer {
        self.layer = None;
        let gathered = self.program.buffer("gathered", self.settings.width(), RowSpace::Wanted);
        self.record("gathered", Op::Gather { input: self.stream, output: gathered });
        gathered
    }

    /// `norm(stream)` for the wanted rows.
    fn last_norm(&mut self, norm: Weight) -> Buffer {
        let gathered = self.gather();
        let hidden = self.program.buffer("result_norm", self.settings.width(), RowSpace::Wanted);
        let epsilon = self.settings.epsilon;
        self.record("result_norm", Op::Norm { input: gathered, weight: norm, epsilon, output: hidden });
        self.program.hidden = Some(hidden);
        hidden
    }

    /// `logits = head · norm(stream)` for the wanted rows.
    fn head(&mut self, norm: Weight, head: Weight, vocabulary: usize) {
        let hidden = self.last_norm(norm);
        let logits = self.program.buffer("result_output", vocabulary, RowSpace::Wanted);
        self.linear("result_output", hidden, vec![Product { weight: head, output: logits, add: false }]);
        self.program.logits = Some(logits);
    }

    /// What follows belongs to this layer. Records what a draft model reads of its input.
    pub(crate) fn enter(&mut self, layer: usize) -> Result<()> {
        self.layer = Some(layer);
        self.tap(layer)
    }

    /// What follows belongs to no layer.
    pub(crate) fn leave_layers(&mut self) {
        self.layer = None;
    }

    /// The residual stream `(rows, width)`.
    pub(crate) fn stream(&self) -> Buffer {
        self.stream
    }

    /// Values per row of the residual stream.
    pub(crate) fn width(&self) -> usize {
        self.settings.width()
    }

    /// Added to the mean of squares in every norm.
    pub(crate) fn epsilon(&self) -> f32 {
        self.settings.epsilon
    }

    /// The program so far, for memories.
    pub(crate) fn program(&mut self) -> &mut Program {
        &mut self.program
    }

    /// A scratch buffer `(rows, width)`, the same for all layers that ask for the same one.
    pub(crate) fn scratch(&mut self, name: &'static str, width: usize) -> Buffer {
        let known = |spec: &BufferSpec| (spec.name, spec.width, spec.rows) == (name, width, RowSpace::Step);
        match self.program.buffers.iter().position(known) {
            Some(index) => Buffer(u16::try_from(index).expect("buffers are numbered in 16 bits")),
            None => self.program.buffer(name, width, RowSpace::Step),
        }
    }

    /// Does this layer have the tensor?
    pub(crate) fn has(&self, suffix: &str) -> bool {
        self.settings.model.tensor(&self.tensor_name(suffix)).is_some()
    }

    /// A matrix of this layer.
    pub(crate) fn matrix(&mut self, suffix: &str) -> Result<Weight> {
        self.weight(WeightSpec::whole(self.tensor_name(suffix), WeightUse::Matrix))
    }

    /// Some rows of a matrix of this layer that several matrices were fused into.
    pub(crate) fn matrix_rows(&mut self, suffix: &str, rows: Range<usize>) -> Result<Weight> {
        self.weight(WeightSpec { rows: Some(rows), ..WeightSpec::whole(self.tensor_name(suffix), WeightUse::Matrix) })
    }

    /// This layer's matrices of all experts, or some rows of each.
    pub(crate) fn experts(&mut self, suffix: &str, rows: Option<Range<usize>>) -> Result<Weight> {
        self.weight(WeightSpec { rows, ..WeightSpec::whole(self.tensor_name(suffix), WeightUse::Experts) })
    }

    /// A vector (or small `f32` matrix) of this layer.
    pub(crate) fn vector(&mut self, suffix: &str) -> Result<Weight> {
        self.weight(WeightSpec::whole(self.tensor_name(suffix), WeightUse::Vector))
    }

    /// A vector of this layer that a file may have.
    pub(crate) fn optional_vector(&mut self, suffix: &str) -> Option<Weight> {
        self.vector(suffix).ok()
    }

    /// A tensor outside the layers.
    pub(crate) fn global(&mut self, name: &str, usage: WeightUse) -> Result<Weight> {
        self.weight(WeightSpec::whole(name, usage))
    }

    /// A tensor of the model that this one drafts for.
    pub(crate) fn of_target(&mut self, name: &str, usage: WeightUse) -> Result<Weight> {
        self.target().tensor(name)?;
        Ok(self.program.weight(WeightSpec::whole(name, usage)))
    }

    fn target(&self) -> &'a Settings<'a> {
        self.target.expect("it was begun with the model that it drafts for")
    }

    fn weight(&mut self, spec: WeightSpec) -> Result<Weight> {
        self.settings.tensor(&spec.tensor)?;
        let tensor = self.name_of(&spec.tensor);
        Ok(self.program.weight(WeightSpec { tensor, ..spec }))
    }

    /// How the program calls a tensor of this model.
    fn name_of(&self, tensor: &str) -> String {
        let prefix = if self.target.is_some() { DRAFT_PREFIX } else { "" };
        format!("{prefix}{tensor}")
    }

    pub(crate) fn tensor_name(&self, suffix: &str) -> String {
        let layer = self.layer.expect("layer tensors are asked for inside a layer");
        format!("blk.{layer}.{suffix}")
    }

    /// Appends an operation of this layer.
    pub(crate) fn record(&mut self, name: &'static str, op: Op) {
        self.program.record(name, self.layer, op);
    }

    /// Appends matrix products that share an input.
    pub(crate) fn linear(&mut self, name: &'static str, input: Buffer, products: Vec<Product>) {
        self.record(name, Op::Linear { input, products });
    }

    /// Appends `stream += weight · input`, the end of every residual branch.
    pub(crate) fn add_to_stream(&mut self, name: &'static str, weight: Weight, input: Buffer) {
        self.linear(name, input, vec![Product { weight, output: self.stream, add: true }]);
    }

    /// Appends the norm of the residual stream that begins every residual branch; `(rows, width)`.
    pub(crate) fn norm_of_stream(&mut self, name: &'static str, suffix: &str) -> Result<Buffer> {
        let weight = self.vector(suffix)?;
        let output = self.scratch("normed", self.settings.width());
        let epsilon = self.settings.epsilon;
        self.record(name, Op::Norm { input: self.stream, weight, epsilon, output });
        Ok(output)
    }

    /// A tensor that was not understood (a bias, a scale) would make the results wrong without a sign.
    fn refuse_unused_tensors(&self) -> Result<()> {
        let used: HashSet<&str> = self.program.weights.iter().map(|spec| spec.tensor.as_str()).collect();
        let layer_of = |name: &str| name.strip_prefix("blk.")?.split('.').next()?.parse().ok();
        let unused = self.settings.model.tensors().find(|tensor| {
            layer_of(tensor.name).is_some_and(|layer: usize| self.stage.layers.contains(&layer))
                && !used.contains(tensor.name)
        });
        match unused {
            None => Ok(()),
            Some(tensor) => Err(self.unused(tensor.name)),
        }
    }

    fn unused(&self, tensor: &str) -> Error {
        Error::UnusedTensor { architecture: self.settings.architecture(), tensor: tensor.to_owned() }
    }
}

/// A product that replaces its output.
pub(crate) fn product(weight: Weight, output: Buffer) -> Product {
    Product { weight, output, add: false }
}

fn check_layers(stage: &StageLayers, count: usize) -> Result<()> {
    let Range { start, end } = stage.layers;
    let problem = if start > end {
        "are no range"
    } else if end > count {
        "do not exist"
    } else if stage.first && start != 0 {
        "cannot follow the embeddings"
    } else if stage.last && end != count {
        "cannot precede the final norm"
    } else {
        return Ok(());
    };
    Err(Error::Layers { layers: stage.layers.clone(), problem, count })
}
