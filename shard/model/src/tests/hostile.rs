//! Files from strangers: whatever a setting or a tensor list says, recording answers with a program that fits the
//! file, or with an error.

use paceline_gguf::{Gguf, Value};
use proptest::prelude::*;

use super::check::check;
use super::file::ModelFile;
use crate::{StageLayers, record};

/// Numbers that break formulas, and some that do not.
fn numbers() -> impl Strategy<Value = u32> {
    prop_oneof![0..70_u32, Just(1 << 20), Just((1 << 20) + 1), Just(u32::MAX), any::<u32>()]
}

fn values() -> impl Strategy<Value = Option<Value>> {
    let lists = prop::collection::vec(numbers(), 0..6);
    prop_oneof![
        4 => numbers().prop_map(|number| Some(Value::U32(number))),
        1 => any::<i64>().prop_map(|number| Some(Value::I64(number))),
        2 => any::<f32>().prop_map(|number| Some(Value::F32(number))),
        1 => lists.prop_map(|list| Some(list.as_slice().into())),
        1 => prop::collection::vec(any::<bool>(), 4..6).prop_map(|list| Some(list.as_slice().into())),
        1 => "[a-z]{0,8}".prop_map(|text| Some(text.as_str().into())),
        1 => Just(None),
    ]
}

/// Records a stage of a file, if that opens and is accepted.
fn try_record(file: &ModelFile, stage: &StageLayers) {
    let Ok(model) = Gguf::from_vec(file.writer.to_vec(), "hostile") else { return };
    if let Ok(program) = record(&model, stage) {
        // Shapes of most tensors are for the device to check; the structure must hold whatever they are.
        assert!(program.ops.iter().all(|recorded| recorded.layer.is_none_or(|layer| stage.layers.contains(&layer))));
    }
}

proptest! {
    #[test]
    fn any_settings_are_recorded_or_refused(
        architecture in prop::sample::select(super::ARCHITECTURES.as_slice()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), values()), 1..4),
    ) {
        let mut file = ModelFile::new(architecture, 4, 0);
        for (index, value) in changes {
            let key = &file.writer.entries[1 + index.index(file.writer.entries.len() - 1)].0;
            let name = key.strip_prefix(architecture).expect("only the first key is not the architecture's")[1..].to_owned();
            file.set(&name, value);
        }
        try_record(&file, &StageLayers::of(0..4, 4));
    }

    #[test]
    fn any_missing_tensor_is_noticed(
        architecture in prop::sample::select(super::ARCHITECTURES.as_slice()),
        index in any::<prop::sample::Index>(),
    ) {
        let mut file = ModelFile::new(architecture, 4, 0);
        let removed = file.writer.tensors.remove(index.index(file.writer.tensors.len()));
        let answer = record(&file.open(), &StageLayers::of(0..4, 4));
        prop_assert!(answer.unwrap_err().to_string().contains(removed.name.trim_start_matches("blk.")));
    }

    #[test]
    fn any_part_is_recorded_or_refused(
        architecture in prop::sample::select(super::ARCHITECTURES.as_slice()),
        (start, end) in (0..12_usize, 0..12_usize),
        (first, last) in any::<(bool, bool)>(),
    ) {
        let model = ModelFile::new(architecture, 9, u32::from(architecture.starts_with("qwen35"))).open();
        let stage = StageLayers { layers: start..end, first, last };
        if let Ok(program) = record(&model, &stage) {
            check(&program, &model);
            prop_assert_eq!(program.caches.len() + program.states.len(), stage.layers.len());
        }
    }
}
