{{/* Name of the DaemonSet, and the beginning of the names of all other objects. */}}
{{- define "nodeleak.fullname" -}}
{{- .Values.fullnameOverride | default .Values.nameOverride | default "nodeleak" -}}
{{- end }}

{{- define "nodeleak.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end }}

{{- define "nodeleak.serviceAccountName" -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) }}
  {{- fail "serviceAccount.create=false needs serviceAccount.name: the account must exist, and be the agent's alone" }}
{{- end }}
{{- .Values.serviceAccount.name | default (include "nodeleak.fullname" .) -}}
{{- end }}

{{/* Labels of objects and pods, which selectors never name: they change with the release. */}}
{{- define "nodeleak.labels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The metadata of an object, in place: (list $ $object.metadata) */}}
{{- define "nodeleak.metadata" -}}
{{- $root := index . 0 }}
{{- $metadata := index . 1 }}
{{- $_ := set $metadata "name" (regexReplaceAll "^nodeleak" $metadata.name (include "nodeleak.fullname" $root)) }}
{{- if $metadata.namespace }}{{ $_ := set $metadata "namespace" (include "nodeleak.namespace" $root) }}{{ end }}
{{- $chart := dict "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_") }}
{{- $labels := include "nodeleak.labels" $root | fromYaml }}
{{- $_ := set $metadata "labels" (mergeOverwrite dict ($metadata.labels | default dict) $chart $labels) }}
{{- include "nodeleak.annotate" (list $metadata $root.Values.commonAnnotations) }}
{{- end }}

{{/* More annotations, in place: (list $metadata $annotations) */}}
{{- define "nodeleak.annotate" -}}
{{- $metadata := index . 0 }}
{{- with index . 1 }}
  {{- $_ := set $metadata "annotations" (mergeOverwrite dict ($metadata.annotations | default dict) .) }}
{{- end }}
{{- end }}

{{/* The objects of a file of deploy/, with the names and labels of the release, as a YAML list: (list $ "base/rbac.yaml") */}}
{{- define "nodeleak.objects" -}}
{{- $root := index . 0 }}
{{- $fullname := include "nodeleak.fullname" $root }}
{{- $account := include "nodeleak.serviceAccountName" $root }}
{{- $text := $root.Files.Get (index . 1) | required (printf "the chart lacks %s" (index . 1)) }}
{{- range regexSplit "(?m)^---$" $text -1 }}
  {{- $object := fromYaml . }}
  {{- include "nodeleak.metadata" (list $root $object.metadata) }}
  {{- with $object.roleRef }}{{ $_ := set . "name" (regexReplaceAll "^nodeleak" .name $fullname) }}{{ end }}
  {{- range $object.subjects }}
    {{- $_ := set . "name" $account }}
    {{- $_ := set . "namespace" (include "nodeleak.namespace" $root) }}
  {{- end }}
- {{ toYaml $object | nindent 2 }}
{{ end }}
{{- end }}
