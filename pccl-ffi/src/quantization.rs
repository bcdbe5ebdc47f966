//! How data travels: which requests for quantisation mean what. (Rule 23)

use pccl_core::types::{DataType, Quantization, QuantizationAlgorithm, ReduceOp};

use crate::arguments::{by_number, data_type};
use crate::failure::Failure;
use crate::layout::QuantizationOptions;

/// What a request means for elements of type `data`; none if they travel as they are.
pub(crate) fn quantization(
    data: DataType,
    op: ReduceOp,
    options: QuantizationOptions,
) -> Result<Option<Quantization>, Failure> {
    const ALGORITHMS: [Option<QuantizationAlgorithm>; 3] = [
        None,
        Some(QuantizationAlgorithm::MinMax),
        Some(QuantizationAlgorithm::ZeroPointScale),
    ];
    let asked = data_type(options.quantized_datatype, "quantized_datatype")?;
    let algorithm = by_number(
        &ALGORITHMS,
        options.algorithm,
        "algorithm",
        "pcclQuantizationAlgorithm_t",
    )?;
    match algorithm {
        None => Ok(None),
        Some(algorithm) => {
            Quantization::requested(algorithm, asked, data, op).map_err(Failure::argument)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pccl_core::types::QuantizedType;

    use crate::failure::Code;

    /// None if it is refused.
    fn asked(
        data: DataType,
        op: ReduceOp,
        to: DataType,
        algorithm: i32,
    ) -> Option<Option<Quantization>> {
        let options = QuantizationOptions {
            quantized_datatype: to as i32,
            algorithm,
        };
        match quantization(data, op, options) {
            Ok(quantization) => Some(quantization),
            Err(failure) => {
                assert_eq!(failure.code, Code::InvalidArgument);
                None
            }
        }
    }

    #[test]
    fn without_an_algorithm_the_type_has_no_effect() {
        for data in DataType::ALL {
            for op in ReduceOp::ALL {
                assert_eq!(asked(data, op, DataType::U8, 0), Some(None));
            }
        }
    }

    #[test]
    fn integers_are_not_quantised() {
        for data in DataType::ALL.into_iter().filter(|data| !data.is_float()) {
            assert_eq!(asked(data, ReduceOp::Sum, DataType::U8, 1), None);
        }
    }

    #[test]
    fn zero_point_and_scale_goes_with_sums_only() {
        for op in ReduceOp::ALL {
            let sum = matches!(op, ReduceOp::Sum | ReduceOp::Avg);
            let to = DataType::I8;
            assert_eq!(asked(DataType::F32, op, to, 2).is_some(), sum);
            assert!(asked(DataType::F32, op, to, 1).is_some());
        }
    }

    #[test]
    fn wide_types_send_the_data_as_it_is() {
        use DataType::{F16, F32, F64, U8, U16, U32};
        let plain = Some(None);
        for (data, to) in [(F64, U32), (F64, F32), (F32, F32), (F16, U16), (F16, U32)] {
            assert_eq!(asked(data, ReduceOp::Sum, to, 1), plain, "{data:?} {to:?}");
        }
        let algorithm = QuantizationAlgorithm::MinMax;
        for (data, to) in [(F64, U16), (F32, U16), (F32, U8), (F16, U8)] {
            let narrow = asked(data, ReduceOp::Max, to, 1);
            let to = QuantizedType::from_data_type(to).unwrap();
            assert_eq!(narrow, Some(Some(Quantization { algorithm, to })));
        }
        assert_eq!(asked(F32, ReduceOp::Sum, F16, 1), None);
    }
}
