{{/* On which nodes a DaemonSet runs if there are two: those of the pool, or all others. Empty: there is one. */}}
{{- define "nodeleak.poolAffinity" -}}
{{- if .Values.cleanupPool.enabled -}}
{{- $operator := ternary "In" "NotIn" (hasKey .Values "isCleanupPool") -}}
{{- $label := splitn "=" 2 .Values.cleanupPool.nodeLabel -}}
{{- $term := dict "key" $label._0 "operator" $operator "values" (list $label._1) -}}
{{- $terms := list (dict "matchExpressions" (list $term)) -}}
{{- dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms)) | toYaml -}}
{{- end -}}
{{- end }}
